"""Some layout that fits, however short the time is: legal, and honest about its gap."""

from __future__ import annotations

import pytest

from costmodel.options.pins import Pins
from planner.api import plan, solve
from planner.problem.problem import Problem
from planner.problem.solution import Status
from planner.search.branch_and_bound import BranchAndBound
from planner.search.corner import fast_fit
from planner.search.search import Limits
from profiles.errors import OutOfTime
from tests.support.problems import problem


@pytest.mark.parametrize(("model", "gpus"), [("gpt-175b", 1024), ("mixtral-8x7b", 64)])
def test_without_any_time_there_is_a_layout(model: str, gpus: int) -> None:
    posed = problem(model, gpus, global_batch=1024)
    found = plan(posed.job, posed.machine.cluster, gpus=gpus, time_limit_s=0.0)
    assert found.best is not None
    assert found.status is Status.FEASIBLE
    assert found.best.estimate.peak_secured_bytes <= posed.memory_limit_bytes
    assert found.lower == 0.0
    assert not found.complete


def test_pins_are_kept() -> None:
    pins = Pins(tp=2, recompute="none", micro_batch=2)
    posed = problem("gpt-1.3b", 8, pins=pins, global_batch=64)
    found = fast_fit(posed, "branch-and-bound")
    assert found is not None
    assert found.best is not None
    choice = found.best.choice
    assert (choice.tp, choice.recompute, choice.micro_batch) == (2, "none", 2)


def test_where_nothing_is_found_time_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    posed = problem("gpt-mini", 4)
    with monkeypatch.context() as never:
        never.setattr(Problem, "fits", lambda *_: False)
        assert fast_fit(posed, "branch-and-bound") is None
        with pytest.raises(OutOfTime, match="--time-limit"):
            solve(posed, BranchAndBound(), Limits(time_limit_s=0.0).begun())
