"""What frameworks can run: the table, and what it says of a layout."""

from __future__ import annotations

from pathlib import Path

import pytest

from costmodel.layout.offload import Offload
from costmodel.layout.strategy import Uniform, spell_out
from costmodel.machine.framework import DEFAULT, frameworks
from costmodel.support.features import facts
from costmodel.support.framework_features import (
    BASE,
    Filter,
    capabilities,
    framework_warnings,
    granularity,
    is_described,
    known_of,
)
from docs.support_tables import frameworks_table
from profiles.models.catalog import model
from profiles.models.job import Job

OTHERS = [name for name in frameworks() if name != DEFAULT]
# Fields that the search decides together (`planner.problem.axes`): a rule of facts
# that no step knows all of would let through what is never run.
STEPS = (
    ("tp", "pp", "cp", "dp"),
    ("recompute",),
    ("tp", "cp", "sequence_parallel"),
    ("tp", "cp", "cp_kind"),
    ("dp", "cp", "pp", "schedule", "tp", "ep", "zero", "zero_group"),
)


def job_of(name: str = "gpt-1.3b", global_batch: int = 16) -> Job:
    found = model(name)
    return Job(model=name, spec=found.spec, seq_len=2048, global_batch=global_batch)


def test_every_framework_but_ours_is_described() -> None:
    assert all(is_described(name) for name in OTHERS)
    assert not is_described(DEFAULT)
    assert not is_described(BASE)


@pytest.mark.parametrize("name", OTHERS)
def test_each_claim_has_a_source(name: str) -> None:
    own = capabilities(name)
    for has in own.has.values():
        assert has.values
        assert len(has.source) > 10
    assert all(len(rule.reason) > 10 for rule in own.never)


@pytest.mark.parametrize("name", OTHERS)
def test_rules_are_asked_where_all_that_they_speak_of_is_known(name: str) -> None:
    steps = [known_of(fields) for fields in STEPS]
    for rule in capabilities(name).never:
        assert any(known >= rule.when.keys() for known in steps), rule


@pytest.mark.parametrize("name", OTHERS)
def test_facts_and_values_are_those_that_layouts_have(name: str) -> None:
    job, choice = job_of(), Uniform(tp=2, pp=2, dp=2, cp=2)
    layout = spell_out(choice, job.graph, 16)
    known = {**granularity(layout, job)}
    assert capabilities(name).lacks(layout, job) == capabilities(name).lacks(
        choice, job
    )
    assert known.keys() <= capabilities(name).has.keys()


@pytest.mark.parametrize(
    ("name", "choice", "said"),
    [
        (
            "deepspeed",
            Uniform(pp=2, schedule="interleaved", virtual_stages=2),
            "deepspeed has no interleaved schedule; it has 1f1b",
        ),
        (
            "deepspeed",
            Uniform(pp=2, dp=2, zero=3, zero_group=2),
            "pipeline parallelism",
        ),
        ("fsdp2", Uniform(tp=2, dp=2, zero=3, zero_group=2), "no tensor parallelism"),
        ("fsdp2", Uniform(pp=2), "no pipeline parallelism"),
        ("fsdp2", Uniform(dp=2, zero=1, zero_group=2), "no ZeRO-1; it has ZeRO-2 or 3"),
        ("nemo", Uniform(recompute="cheap-ops"), "no recompute by name"),
        ("megatron-core", Uniform(recompute="cheap-ops"), "no recompute of activation"),
        ("torchtitan", Uniform(recompute="mlp_up"), "no recompute by name"),
        ("torchtitan", Uniform(tp=2), "without sequence parallelism"),
        ("megatron-lm", Uniform(pp=7), "stages of unequal layers; it has equal"),
        ("megatron-lm", Uniform(cp=2), "no context parallelism"),
        (
            "megatron-core",
            Uniform(recompute="selective", recompute_layers=3),
            "--recompute-method block",
        ),
        ("nanotron", Uniform(pp=2, schedule="zb-h1"), "it has 1f1b or gpipe"),
        (
            "deepspeed",
            Uniform(dp=2, zero=2, zero_group=2, offload=Offload(parameters=True)),
            "offload_param is ZeRO-3's",
        ),
    ],
)
def test_what_is_lacking_and_what_is_nearest(
    name: str, choice: Uniform, said: str
) -> None:
    found = capabilities(name).lacks(choice, job_of())
    assert any(said in one for one in found), found
    assert framework_warnings(name, choice, job_of()) == tuple(found)


@pytest.mark.parametrize(
    ("name", "choice"),
    [
        ("deepspeed", Uniform(tp=2, dp=2, zero=2, zero_group=2)),
        ("deepspeed", Uniform(zero=3, offload=Offload(parameters=True))),
        ("fsdp2", Uniform(dp=4, zero=3, zero_group=2)),
        ("fsdp2", Uniform()),  # one rank shards nothing
        ("megatron-core", Uniform(recompute="input_norm,mlp_norm")),
        ("megatron-core", Uniform(recompute="full", recompute_layers=3)),
        ("megatron-core", Uniform(pp=5)),
        (
            "torchtitan",
            Uniform(
                tp=2, pp=2, schedule="zb-v", virtual_stages=2, sequence_parallel=True
            ),
        ),
        ("nemo", Uniform(pp=2, schedule="interleaved", virtual_stages=4)),
    ],
)
def test_what_it_has_is_no_matter(name: str, choice: Uniform) -> None:
    assert capabilities(name).lacks(choice, job_of()) == []
    layout = spell_out(choice, job_of().graph, 16)
    assert capabilities(name).lacks(layout, job_of()) == []


def test_the_page_shows_the_table(root: Path) -> None:
    page = (root / "docs" / "frameworks.md").read_text(encoding="utf-8")
    assert frameworks_table() in page, "run python -m docs.regenerate"


def test_of_our_own_software_nothing_is_said() -> None:
    choice = Uniform(pp=2, schedule="chimera")
    assert framework_warnings(DEFAULT, choice, job_of()) == ()
    assert framework_warnings(None, choice, job_of()) == ()


def test_a_value_is_asked_when_it_alone_decides() -> None:
    """ZeRO-3 is never beside a pipeline in DeepSpeed, and goes without."""
    filter_ = Filter(of=capabilities("deepspeed"), job=job_of(), plain=Uniform())
    assert filter_.keeps(pp=2)
    assert filter_.keeps(dp=8, cp=1, zero=3, zero_group=8)
    assert not filter_.keeps(dp=8, cp=1, pp=4, tp=1, ep=1, zero=3, zero_group=8)
    assert filter_.keeps(dp=8, cp=1, pp=4, tp=1, ep=1, zero=1, zero_group=8)
    assert not filter_.keeps(pp=4, schedule="interleaved", virtual_stages=2)


@pytest.mark.parametrize("layers", [None, 0, 3, 12])
@pytest.mark.parametrize("name", ["none", "selective", "cheap-ops", "full", "mlp_up"])
def test_a_choice_and_its_layout_have_the_same_granularity(
    name: str, layers: int | None
) -> None:
    job = job_of()
    for pp in (1, 2, 5):
        choice = Uniform(pp=pp, recompute=name, recompute_layers=layers)
        layout = spell_out(choice, job.graph, 16)
        assert granularity(choice, job) == granularity(layout, job)


def test_facts_are_not_those_of_the_support_table() -> None:
    from costmodel.support.features import Combination

    known = facts(Combination.of_choice(Uniform(), job_of()), job_of())
    assert not known.keys() & granularity(Uniform(), job_of()).keys()
