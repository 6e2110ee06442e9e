"""The frontier hands out candidates by their bounds, and forgets none."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from math import inf

import numpy as np
import pytest

from costmodel.layout.strategy import Columns, Uniform
from costmodel.options.pins import Pins
from planner.problem.problem import Objective, Problem
from planner.problem.space import Space
from planner.problem.table import length
from planner.search.bounds import leaf_bounds
from planner.search.frontier import Frontier
from planner.search.shortlist import split
from tests.support.problems import problem

OBJECTIVES = (Objective.THROUGHPUT, Objective.MEMORY, Objective.COST)


def taken(frontier: Frontier) -> Iterator[Uniform]:
    while (choice := frontier.take()) is not None:
        yield choice


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_all_that_fit_come_out_in_order(objective: Objective) -> None:
    posed = problem("gpt-mini", 4, objective=objective, pins=Pins(cp=1))
    space = Space(problem=posed)
    leaves = space.leaves(space.branches)
    bounds = leaf_bounds(posed, leaves)
    limit = float(np.quantile(bounds.needed_bytes, 0.5))
    fitting = bounds.needed_bytes <= limit
    values = posed.value_of(bounds.step_time_s, bounds.needed_bytes)[fitting]
    frontier = Frontier(replace(posed, memory_limit_bytes=limit))
    found = list(taken(frontier))
    assert frontier.considered == len(leaves)
    assert len(found) + frontier.dropped_for_memory == len(leaves)
    assert len(set(found)) == len(found)
    again = leaf_bounds(posed, Columns.of(found))
    in_order = posed.value_of(again.step_time_s, again.needed_bytes)
    assert np.allclose(in_order, np.sort(values), rtol=1e-12)


def test_least_is_below_all_that_is_left() -> None:
    posed = problem("gpt-mini", 8)
    frontier = Frontier(posed)
    for _ in range(50):
        least = frontier.least
        choice = frontier.take()
        assert choice is not None
        bound = float(leaf_bounds(posed, Columns.of([choice])).step_time_s[0])
        assert least <= bound * (1 + 1e-12)


def test_few_branches_are_opened_for_the_best() -> None:
    frontier = Frontier(problem("gpt-13b", 64, global_batch=1536))
    assert frontier.take() is not None
    assert frontier.opened < 0.02 * length(frontier.space.branches)


def test_splits_that_are_closed_do_not_come_out() -> None:
    """Of leaves at hand the nearest of each family is told, with its bound."""
    frontier = Frontier(problem("gpt-mini", 4))
    first = frontier.take()
    assert first is not None
    others = frontier.close(first, ("zero",))
    assert [bound for _, bound in others] == sorted(bound for _, bound in others)
    assert {split(choice) for choice, _ in others} == {split(first)}
    levels = [choice.zero for choice, _ in others]
    assert len(levels) == len(set(levels))
    assert all(split(choice) != split(first) for choice in taken(frontier))


def test_what_is_too_big_but_faster_is_remembered() -> None:
    posed = problem("gpt-13b", 64, global_batch=1536)
    frontier = Frontier(posed)
    best = frontier.take()
    assert best is not None
    seconds = posed.simulate(best).estimate.step_time_s
    choice = frontier.too_big(seconds)
    assert choice is not None
    found = posed.simulate(choice).estimate
    assert found.peak_needed_bytes > posed.memory_limit_bytes
    assert frontier.too_big(0.0) is None


def test_an_empty_space_is_an_empty_frontier() -> None:
    empty: Problem = problem(gpus=2, pins=Pins(tp=2, pp=2))
    frontier = Frontier(empty)
    assert (frontier.considered, frontier.least, frontier.take()) == (0, inf, None)
