"""All schedules are searched: no pin of one finds what the plan does not."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings

from costmodel.options.pins import Pins
from costmodel.schedule.schedules import FLUSHED, SCHEDULES
from planner.api import solve
from planner.problem.pin_checks import require_consistent
from planner.problem.problem import Problem
from planner.problem.solution import EXACT, Solution, Status
from planner.problem.space import Space
from planner.problem.table import length
from planner.search.branch_and_bound import BranchAndBound
from planner.search.search import Limits
from profiles.errors import Contradiction
from tests.support.problems import on, problem, small_problems


def solved(posed: Problem) -> Solution:
    return solve(posed, BranchAndBound(), Limits(runners_up=0))


def of_each_schedule(posed: Problem) -> dict[str, float]:
    """The value of the plan with each schedule pinned that has any layout."""
    found = {}
    for name in SCHEDULES if posed.allow_async else FLUSHED:
        pinned = replace(posed, pins=replace(posed.pins, schedule=name))
        if length(Space(problem=pinned).trunks):
            found[name] = solved(pinned).value
    return found


@given(posed=small_problems())
@settings(max_examples=6)
def test_no_pin_of_a_schedule_is_better_than_the_plan(posed: Problem) -> None:
    posed = replace(posed, pins=replace(posed.pins, schedule=None))
    best = solved(posed)
    assert best.value <= min(of_each_schedule(posed).values()) * (1 + EXACT)


@pytest.mark.parametrize(
    ("name", "gpus", "batch", "cluster", "pins", "at_least"),
    [
        ("gpt-1.3b", 8, 16, "dgx-a100-80gb", Pins(pp=8), "chimera"),
        ("llama-65b", 64, 1024, "dgx-a100-80gb", Pins(pp=16), "dualpipe-v"),
        ("gpt-39.1b", 32, 1024, "dgx-h100", Pins(pp=8), "zb-v"),
    ],
)
def test_a_plan_is_as_good_as_what_it_left_out_before(
    name: str, gpus: int, batch: int, cluster: str, pins: Pins, at_least: str
) -> None:
    posed = problem(name, gpus, global_batch=batch, where=on(cluster), pins=pins)
    found = solved(posed)
    assert found.status is Status.OPTIMAL
    pinned = replace(posed, pins=replace(pins, schedule=at_least))
    assert found.value <= solved(pinned).value * (1 + EXACT)
    usual = replace(posed, pins=replace(pins, schedule="1f1b"))
    assert found.value < solved(usual).value


def test_a_schedule_without_a_flush_is_never_chosen_unasked() -> None:
    """It would be the fastest here: few micro-batches a step, and no bubble."""
    pins = Pins(tp=1, pp=8)
    posed = problem("llama2-7b", 16, global_batch=32, pins=pins)
    plain, stale = solved(posed), solved(replace(posed, allow_async=True))
    assert plain.best is not None
    assert stale.best is not None
    assert plain.best.choice.schedule in FLUSHED
    assert stale.best.choice.schedule not in FLUSHED
    assert stale.value < 0.95 * plain.value
    assert stale.status is Status.OPTIMAL


@pytest.mark.parametrize("schedule", ["async-1f1b", "2bw", "pipemare", "pb"])
def test_a_pin_of_one_has_to_be_allowed(schedule: str) -> None:
    posed = problem(pins=Pins(schedule=schedule))
    with pytest.raises(Contradiction, match="add --allow-async") as raised:
        require_consistent(posed)
    assert raised.value.exit_code == 2
    require_consistent(replace(posed, allow_async=True))


@pytest.mark.parametrize("schedule", ["zb-v", "dualpipe-v"])
def test_layers_of_several_kinds_lie_in_a_v(schedule: str) -> None:
    """DeepSeek's 61 fall into no even number of equal chunks."""
    pins = Pins(schedule=schedule, pp=16, tp=1, cp=1, recompute="none")
    posed = problem("deepseek-v3", 2048, global_batch=15360, pins=pins)
    assert length(Space(problem=posed).trunks)
