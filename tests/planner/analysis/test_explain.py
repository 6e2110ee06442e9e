"""Explanations follow the numbers."""

from __future__ import annotations

from dataclasses import replace

import pytest

from costmodel.options.pins import Pins
from planner.analysis.explain import binds, doubt, indistinguishable, loss, worse
from planner.analysis.uncertainty import INDISTINGUISHABLE
from planner.api import solve
from planner.problem.problem import Objective
from planner.problem.solution import WORTHWHILE
from planner.search.registry import SEARCHES
from planner.search.search import Limits
from tests.support.problems import problem

SEARCH = SEARCHES["branch-and-bound"]


def test_shares_come_largest_first() -> None:
    posed = problem("gpt-13b", 20, global_batch=60, pins=Pins(tp=10))
    found = solve(posed, SEARCH, Limits(runners_up=0))
    said = binds(posed, found).split("; ")
    shares = [
        int(part.split()[-1].rstrip("%")) for part in said if part[:6] != "memory"
    ]
    assert shares == sorted(shares, reverse=True)
    assert any(part.startswith("tensor parallel over network") for part in said)


def test_memory_binds_where_something_faster_does_not_fit() -> None:
    posed = problem("gpt-13b", 8, global_batch=64)
    found = solve(posed, SEARCH, Limits(runners_up=0))
    assert found.best is not None
    assert found.too_big is not None
    assert found.too_big.estimate.peak_needed_bytes > posed.memory_limit_bytes
    fastest_s = found.best.estimate.step_time_s * WORTHWHILE
    assert found.too_big.estimate.step_time_s < fastest_s
    assert binds(posed, found).startswith("memory: with ")


def test_plenty_of_memory_does_not_bind() -> None:
    posed = problem(gpus=2)
    found = solve(posed, SEARCH, Limits())
    assert found.too_big is None
    assert "memory" not in binds(posed, found)


def test_a_runner_up_loses_what_grew() -> None:
    posed = problem("gpt-13b", 16, global_batch=64)
    found = solve(posed, SEARCH, Limits())
    assert found.best is not None
    step_s = found.best.estimate.step_time_s
    for other in found.runners_up:
        parts = dict(other.estimate.breakdown_s)
        grown = {
            name: parts[name] - s for name, s in found.best.estimate.breakdown_s.items()
        }
        most = max(grown.values()) / step_s
        if worse(posed, found.best, other) > 0.01:
            assert f"+{most:.1%}" in loss(posed, found.best, other)


def test_what_is_within_the_uncertainty_is_said() -> None:
    posed = problem("gpt-13b", 16, global_batch=64)
    found = solve(posed, SEARCH, Limits(runners_up=8))
    assert found.best is not None
    alike = indistinguishable(posed, found)
    for index, other in enumerate(found.runners_up):
        unsure = doubt(posed, found.best, other)
        assert unsure >= INDISTINGUISHABLE
        assert (worse(posed, found.best, other) <= unsure) == (index in alike)
    twin = replace(found, runners_up=(found.best,))
    assert indistinguishable(posed, twin) == [0]
    assert loss(posed, found.best, found.best) == "nothing"


@pytest.mark.parametrize("objective", [Objective.MEMORY])
def test_the_least_memory_is_explained_by_its_kinds(objective: Objective) -> None:
    posed = problem(gpus=4, objective=objective)
    found = solve(posed, SEARCH, Limits())
    assert "context" in binds(posed, found)
    assert found.best is not None
    for other in found.runners_up:
        said = loss(posed, found.best, other)
        assert said == "nothing" or said.startswith("needs ")
