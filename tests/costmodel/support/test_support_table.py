"""The support table: every combination has a row, every row an example."""

from __future__ import annotations

import dataclasses
from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest

from costmodel.layout.layout import CP_KINDS
from costmodel.layout.offload import Offload
from costmodel.layout.retention import PRESETS
from costmodel.layout.strategy import Uniform, spell_out
from costmodel.options.pins import Pins
from costmodel.schedule.schedules import SCHEDULES
from costmodel.simulation.question import default_precision, resolve
from costmodel.support.features import Combination, facts
from costmodel.support.legality import fuses_attention
from costmodel.support.support_table import (
    Answer,
    is_local,
    local_warnings,
    mechanisms,
    refusals,
    require_supported,
    support,
)
from docs.support_tables import support_table
from profiles.commandline.options import JobOptions
from profiles.errors import MeshwrightError, Unsupported
from profiles.hardware.catalog import cluster
from profiles.hardware.clusters import Cluster
from profiles.hardware.precisions import GRADIENT_FORMATS, PRECISIONS
from profiles.models.catalog import model, names
from profiles.models.job import OPTIMIZERS, Job
from profiles.models.spec import FAMILIES, Numerics
from tests.support.fact_settings import SPEC
from tests.support.supported import ROWS, Example, examples

PAGE = Path(__file__).resolve().parents[3] / "docs" / "support.md"
EXAMPLES = list(examples())
UNKNOWN = "does not know it"


def job(**changes: object) -> Job:
    spec = replace(SPEC, **changes)  # type: ignore[arg-type]
    return Job(model="small", spec=spec, seq_len=16, global_batch=8)


def local(name: str = "cpu") -> Cluster:
    return replace(cluster(name), name="local")


@pytest.mark.parametrize("case", EXAMPLES, ids=lambda case: case.name)
def test_every_row_answers_its_examples(case: Example) -> None:
    found = {one.mechanism: one for one in support(case.layout, case.job)}
    verdict = found[case.mechanism]
    assert (verdict.answer, verdict.reason) == (case.row.answer, case.row.reason)
    others = [one for one in found.values() if one.mechanism != case.mechanism]
    alone = case.row.answer is Answer.YES
    assert not alone or {one.answer for one in others} == {Answer.YES}


@pytest.mark.parametrize("case", EXAMPLES, ids=lambda case: case.name)
def test_what_is_not_a_yes_is_refused_with_its_reason(case: Example) -> None:
    if case.row.answer is Answer.YES:
        require_supported(case.layout, case.job)
        return
    with pytest.raises(Unsupported) as raised:
        require_supported(case.layout, case.job)
    assert raised.value.exit_code == 2
    assert case.row.reason in str(raised.value)
    assert "`simulate` prices it" in str(raised.value)


def test_rows_say_why_and_name_known_facts() -> None:
    known = set(facts(Combination.of_choice(Uniform(), job()), job()))
    known |= {"own code", "splits"}  # of modules of one's own
    for mechanism in mechanisms():
        named = {*mechanism.about, *mechanism.unless}
        assert named <= known
        for row in mechanism.rows:
            assert row.when.keys() <= known
            assert row.reason
            assert row.when, "a row says of which combination it speaks"
    assert len({mechanism.name for mechanism in mechanisms()}) == len(mechanisms())


@pytest.mark.parametrize(
    ("field", "values"),
    [
        ("schedule", tuple(SCHEDULES)),
        ("precision", PRECISIONS),
        ("recompute", PRESETS),
        ("zero", (0, 1, 2, 3)),
        ("cp_kind", CP_KINDS),
    ],
)
def test_every_value_of_a_layout_is_known_to_the_table(
    field: str, values: tuple[object, ...]
) -> None:
    for value, (tp, pp, dp) in product(values, product((1, 2), repeat=3)):
        for gradients in GRADIENT_FORMATS:
            choice = Uniform(tp=tp, pp=pp, dp=dp, gradient_format=gradients)
            choice = dataclasses.replace(choice, **{field: value})  # type: ignore[arg-type]
            verdicts = support(choice, job())
            assert not [one for one in verdicts if UNKNOWN in one.reason]


@pytest.mark.parametrize("name", names())
def test_every_model_of_the_catalogue_is_known_to_the_table(name: str) -> None:
    found = model(name)
    asked = Job(
        model=name, spec=found.spec, seq_len=found.seq_len or 128, global_batch=8
    )
    for tp in (1, 2):
        verdicts = support(Uniform(tp=tp), asked)
        assert verdicts
        assert not [one for one in verdicts if UNKNOWN in one.reason]


def test_every_family_and_optimizer_has_a_row() -> None:
    named = {
        fact: {value for _, row in ROWS for value in row.when.get(fact, ())}
        for fact in ("family", "optimizer")
    }
    assert named == {"family": {*FAMILIES, "module"}, "optimizer": set(OPTIMIZERS)}


def test_what_the_table_does_not_know_is_refused() -> None:
    asked = dataclasses.replace(Uniform(pp=2), schedule="hanayo")
    (reason,) = refusals(asked, job())
    assert reason == "pipeline (schedule hanayo): the support table does not know it"


def test_mechanisms_that_are_not_used_have_no_verdict() -> None:
    used = {one.mechanism for one in support(Uniform(dp=2, zero_group=2), job())}
    assert "data parallelism" in used
    unused = {"tensor parallelism", "pipeline", "dropout", "combination"}
    assert not used & unused


def test_every_reason_is_given_with_the_numbers_asked_about() -> None:
    away, dropped = Offload(parameters=True), Numerics(attention_dropout=0.1)
    bad = Uniform(
        tp=4, dp=4, cp=3, zero=2, zero_group=2, recompute="mlp_up=0.5", offload=away
    )
    found = refusals(bad, job(kv_heads=2, numerics=dropped))
    assert [one.split(":")[0] for one in found] == [
        "attention dropout (0.1, cp 3)",
        "tensor parallelism (tp 4, kv_heads 2)",
        "context parallelism (cp 3, cp kind ring, chunks 16)",
        "recompute (in part)",
        "states (parameters)",
    ]


def test_operators_by_name_are_what_they_remake() -> None:
    """The attention operator's remade tensors are the preset `selective`."""
    assert refusals(Uniform(recompute="attention"), job()) == []
    assert refusals(Uniform(recompute="activation"), job()) == []
    assert refusals(Uniform(recompute="activation=0.5"), job()) != []
    none = Uniform(recompute="activation=0.5", recompute_layers=0)
    assert refusals(none, job()) == []


def test_a_window_that_the_sequence_fits_in_masks_nothing() -> None:
    assert refusals(Uniform(), job(window=16)) == []
    (reason,) = refusals(Uniform(), job(window=15))
    assert reason.startswith("attention (window 15)")


def test_zero_over_one_rank_shards_nothing() -> None:
    assert refusals(Uniform(zero=3, zero_group=1), job()) == []


def test_local_is_the_cluster_of_that_name() -> None:
    assert is_local(local())
    assert not is_local(cluster("cpu"))


def test_only_a_local_price_warns() -> None:
    split = Uniform(cp=3)
    assert local_warnings(split, job(), cluster("cpu")) == ()
    (line,) = local_warnings(split, job(), local())
    assert line.startswith("`execute` does not carry it out: context parallelism")
    assert local_warnings(Uniform(), job(), local()) == ()


def test_simulate_prices_what_is_not_carried_out_and_warns_on_this_machine() -> None:
    wish, pins = JobOptions(gpus=2, global_batch=8), Pins(flash_attention=False)
    tiny = model("gpt-tiny")
    assert resolve(tiny, cluster("cpu"), wish, pins).warnings == ()
    (line,) = resolve(tiny, local(), wish, pins).warnings
    assert "attention kernel (unfused)" in line


def test_attention_is_fused_on_every_local_device() -> None:
    """PyTorch has such kernels for devices that FlashAttention left out."""
    assert not fuses_attention(cluster("p3.16xlarge"))
    assert fuses_attention(local("p3.16xlarge"))


def test_a_local_default_is_a_precision_that_is_carried_out() -> None:
    assert default_precision(cluster("p3.16xlarge")) == "fp16"
    assert default_precision(local("p3.16xlarge")) == "fp32"


def test_a_finished_layout_and_its_choice_get_the_same_answers() -> None:
    asked = job(dropout=0.1, tied_embeddings=True)
    for degrees in product((1, 2), repeat=4):
        tp, pp, dp, cp = degrees
        choice = Uniform(tp=tp, pp=pp, dp=dp, cp=cp, zero=2, precision="fp32")
        layout = spell_out(choice, asked.graph, asked.global_batch)
        assert refusals(choice, asked) == refusals(layout, asked)


def test_the_page_shows_the_table() -> None:
    assert support_table() in PAGE.read_text(encoding="utf-8"), (
        "run `python -m docs.regenerate`"
    )


def test_questions_with_unknown_names_are_errors_not_answers() -> None:
    with pytest.raises(MeshwrightError, match="unknown recompute preset"):
        refusals(Uniform(recompute="nonsense"), job())
