"""On this machine only what `execute` carries out is recommended."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from costmodel.options.pins import Pins
from costmodel.support.support_table import refusals, require_supported
from planner.analysis.infeasibility import diagnose
from planner.api import plan, solve
from planner.problem.problem import Problem
from planner.problem.question import Goal, Posed, pose
from planner.problem.solution import Status
from planner.problem.space import Space
from planner.report.document import bound_document
from planner.report.tables import proof_words
from planner.search.registry import search_called
from planner.search.search import Limits
from profiles.commandline.options import JobOptions
from profiles.errors import Contradiction, Unsupported
from profiles.models.catalog import model
from profiles.models.job import Model
from profiles.models.spec import DecoderSpec
from tests.support.problems import local, on, problem

CARRIED = "that `execute` supports"


def posed(
    *,
    here: bool = True,
    executable: bool | None = None,
    gpus: int = 4,
    asked: Model | None = None,
    optimizer: str | None = None,
    grad_dtype: str | None = None,
    precision: str | None = "fp32",
    **pins: Any,
) -> Posed:
    devices = "cpu" if precision == "fp32" else "dgx-a100-80gb"
    where = local(devices) if here else on(devices)
    wish = JobOptions(
        gpus=gpus,
        global_batch=8,
        precision=precision,
        optimizer=optimizer,
        grad_dtype=grad_dtype,
    )
    found = asked or model("gpt-tiny")
    return pose(found, where.cluster, wish, Pins(**pins), Goal(executable=executable))


def dropping() -> Model:
    """Dropout of attention is not executed with cp."""
    known = model("gpt-tiny")
    assert isinstance(known.spec, DecoderSpec)
    return replace(known, spec=noisy(known.spec))


def noisy(spec: DecoderSpec) -> DecoderSpec:
    return replace(spec, numerics=replace(spec.numerics, attention_dropout=0.1))


def solved(asked: Problem) -> Any:
    return solve(asked, search_called("branch-and-bound"), Limits(runners_up=5))


def test_only_a_local_question_is_about_what_is_carried_out() -> None:
    assert posed().problem.executable
    assert posed().assumed["executable"] is True
    elsewhere = posed(here=False)
    assert not elsewhere.problem.executable
    assert "executable" not in elsewhere.assumed


def test_what_was_asked_for_is_not_assumed() -> None:
    free = posed(executable=False)
    assert not free.problem.executable
    assert "executable" not in free.assumed
    forced = posed(here=False, executable=True)
    assert forced.problem.executable
    assert "executable" not in forced.assumed


@pytest.mark.parametrize("limited", [False, True], ids=["plain", "dropping"])
def test_what_is_recommended_is_carried_out_and_the_certificate_says_so(
    limited: bool,
) -> None:
    """Of the plain model everything is carried out that is searched."""
    asked = (posed(asked=dropping()) if limited else posed()).problem
    found = solved(asked)
    assert found.status is Status.OPTIMAL
    for candidate in (found.best, *found.runners_up):
        require_supported(candidate.estimate.layout, asked.job)
    assert bound_document(asked, found)["executable"] is True
    assert "executable layouts has a smaller step time" in proof_words(asked, found)
    wide = replace(asked, executable=False)
    everything = solved(wide)
    assert bound_document(wide, everything)["executable"] is False
    assert "executable" not in proof_words(wide, everything)
    more = everything.counters.considered - found.counters.considered
    assert (more > 0) == limited
    assert everything.value <= found.value


@pytest.mark.parametrize(
    ("pins", "reason"),
    [
        ({"flash_attention": False}, "attention kernel (unfused)"),
        ({"optimizer": "lamb"}, "optimizer (lamb)"),
        ({"optimizer": "adamw-bf16-moments"}, "optimizer (adamw-bf16-moments)"),
        ({"precision": "bf16", "grad_dtype": "bf16"}, "gradients (bf16)"),
    ],
)
def test_a_pin_that_is_not_carried_out_is_refused_with_the_reason(
    pins: dict[str, Any], reason: str
) -> None:
    posed(here=False, **pins)
    posed(executable=False, **pins)
    with pytest.raises(Unsupported) as raised:
        posed(**pins)
    assert raised.value.exit_code == 2
    assert reason in str(raised.value)
    assert "`simulate` prices it" in str(raised.value)


def test_pins_that_are_carried_out_but_not_together_leave_nothing() -> None:
    """Key-value heads are copied to tensor-parallel ranks by the price alone."""
    tiny = model("gpt-tiny")
    grouped = replace(tiny, spec=replace(tiny.spec, kv_heads=2))  # type: ignore[arg-type]
    pins: dict[str, Any] = {"pp": 1, "cp": 1, "asked": grouped}
    posed(executable=False, gpus=4, **pins, dp=1)
    with pytest.raises(Contradiction, match=r"supports keeps all of .*--dp"):
        posed(gpus=4, **pins, dp=1)
    best = solved(posed(gpus=4, **pins, dp=2).problem).best
    assert best.choice.tp == 2


@pytest.mark.parametrize(
    "pins",
    [
        {"tp": 2, "zero": 3},
        {"zero": 2},
        {"zero": 1, "dp": 4},
        {"zero": 1, "dp": 4, "zero_group": 2},
        {"dp": 4, "zero_group": 2},
        {"zero_group": 2},
        {"dp": 2, "zero_group": 2},
        {"dp": 4, "zero": 0},
        {"pp": 2, "schedule": "interleaved", "virtual_stages": 2},
        {"pp": 2, "dp": 2, "zero": 3, "recompute": "full", "recompute_layers": 1},
        {"recompute": "cheap-ops", "recompute_layers": 0},
        {"tp": 2, "sequence_parallel": True},
    ],
)
def test_pins_that_are_carried_out_are_kept(pins: dict[str, Any]) -> None:
    asked = posed(**pins).problem
    best = solved(asked).best
    assert best is not None
    assert refusals(best.choice, asked.job) == []


@pytest.mark.parametrize("away", ["optimizer", "optimizer,parameters"])
def test_states_that_leave_are_planned_as_they_are_carried_out(away: str) -> None:
    asked = posed(precision="bf16", offload=away).problem
    best = solved(asked).best
    assert best is not None
    assert best.choice.offload == asked.offload
    assert refusals(best.estimate.layout, asked.job) == []


def test_shards_that_leave_without_their_optimizer_are_refused() -> None:
    with pytest.raises(Unsupported, match="add optimizer to --offload"):
        posed(precision="bf16", offload="parameters")


def test_a_model_that_is_not_trained_is_refused() -> None:
    tiny = model("gpt-tiny")
    slanted = replace(tiny, spec=replace(tiny.spec, position="alibi"))  # type: ignore[arg-type]
    with pytest.raises(Unsupported, match=r"positions \(alibi\)"):
        posed(asked=slanted)
    posed(here=False, asked=slanted)


def test_pins_that_leave_nothing_are_said_to() -> None:
    """It forbids cp, so that two of four GPUs are left with nothing to do."""
    with pytest.raises(Contradiction, match=CARRIED):
        posed(asked=dropping(), dp=2, pp=1, tp=1)
    with pytest.raises(Unsupported, match=r"attention dropout \(0\.1, cp 2\)"):
        posed(asked=dropping(), cp=2)


def test_a_space_that_only_support_empties_is_diagnosed_as_such() -> None:
    """14 GPUs, two layers, four heads, a batch of four: only cp has a factor of 7."""
    free = problem(gpus=14, global_batch=4, where=local())
    assert isinstance(free.job.spec, DecoderSpec)
    spec = noisy(replace(free.job.spec, layers=2, heads=4, kv_heads=4))
    job = replace(free.job, spec=spec, seq_len=224)
    asked = replace(free, job=job, executable=True)
    assert solved(replace(asked, executable=False)).best is not None
    assert solved(asked).best is None
    why = diagnose(asked)
    assert why.constraint.startswith("support: ")
    assert why.nearest is not None


def test_the_front_door_plans_what_is_carried_out_on_this_machine() -> None:
    free = problem(where=local())
    where = local().cluster
    for asked, most in ((None, 1), (False, 4)):
        found = plan(free.job, where, gpus=4, on=local(), executable=asked)
        assert found.best is not None
        assert found.best.choice.cp <= most
        assert asked is False or not refusals(found.best.choice, free.job)


def test_candidates_that_do_not_flush_are_carried_out_too() -> None:
    pins = Pins(recompute="none")
    asked = problem(
        gpus=4, where=local("cpu"), executable=True, allow_async=True, pins=pins
    )
    space = Space(problem=asked)
    leaves = space.leaves(space.branches)
    choices = [space.choice(leaves, row) for row in range(len(leaves))]
    assert {"2bw", "pb"} <= {one.schedule for one in choices}
    for choice in choices:
        assert not refusals(choice, asked.job), choice
