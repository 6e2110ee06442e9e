"""Runners-up: the best of what is not the same, however many are asked for."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from costmodel.machine.assembly import Machine, machine
from costmodel.options.pins import Pins
from planner.api import plan, solve
from planner.problem.problem import Candidate, Problem
from planner.problem.solution import Solution
from planner.problem.space import Space
from planner.search import branch_and_bound
from planner.search.branch_and_bound import BranchAndBound
from planner.search.registry import PROVERS, SEARCHES
from planner.search.search import Limits
from planner.search.shortlist import NEGLIGIBLE, distinct, family, split
from profiles.hardware.clusters import Figure
from tests.support.problems import on, problem, small_problems

MOST = 9


def listed(solution: Solution) -> list[Candidate]:
    return [] if solution.best is None else [solution.best, *solution.runners_up]


def in_order(posed: Problem, several: list[Candidate]) -> None:
    """By value, and no two the same."""
    values = [posed.value(one) for one in several]
    assert values == sorted(values)
    for place, one in enumerate(several):
        for other in several[:place]:
            if split(one.choice) == split(other.choice):
                assert family(one.choice) != family(other.choice)
                assert posed.value(one) >= posed.value(other) * (1 + NEGLIGIBLE)


@given(posed=small_problems(), many=st.integers(0, MOST - 1))
@settings(max_examples=8)
def test_a_shorter_list_is_the_beginning_of_a_longer_one(
    posed: Problem, many: int
) -> None:
    for name in PROVERS:
        longest = listed(solve(posed, SEARCHES[name], Limits(runners_up=MOST)))
        shorter = listed(solve(posed, SEARCHES[name], Limits(runners_up=many)))
        in_order(posed, longest)
        choices = [one.choice for one in longest]
        assert [one.choice for one in shorter] == choices[: many + 1]


@pytest.mark.parametrize("small", [0, branch_and_bound.SMALL])
def test_a_list_does_not_hang_on_its_length(
    monkeypatch: pytest.MonkeyPatch, small: int
) -> None:
    """Also where what is left of a split is passed over at once."""
    monkeypatch.setattr(branch_and_bound, "SMALL", small)
    posed = problem("gpt-1.3b", 4, global_batch=16)
    found = (BranchAndBound().solve(posed, Limits(runners_up=k)) for k in (1, 3, 12))
    lists = [[one.choice for one in listed(each)] for each in found]
    assert len(lists[-1]) == 13
    for shorter, longer in pairwise(lists):
        assert shorter == longer[: len(shorter)]


def test_the_plan_lists_what_is_not_the_same_as_its_recommendation() -> None:
    posed = problem("gpt-1.3b", 2, global_batch=16)
    job, cluster = posed.job, posed.machine.cluster
    few, many = (plan(job, cluster, gpus=2, runners_up=count) for count in (3, 6))
    assert few.best is not None
    assert [one.choice for one in few.runners_up] == [
        one.choice for one in many.runners_up[:3]
    ]
    several = listed(many)
    assert distinct(posed, several) == several


def over_ethernet() -> Machine:
    """Nodes of one device each, 10 Gbit/s between them."""
    cluster = on("a100-pcie").cluster
    island = cluster.islands[0]
    speed = Figure(value=10.0, unit="Gbit/s", source="")
    outer = replace(island.levels[-1], bandwidth=speed)
    inner = replace(island.levels[0], devices=1)
    alone = replace(island, devices_per_node=1, levels=(inner, outer))
    return machine(replace(cluster, islands=(alone,)))


def test_other_splits_do_not_hide_what_is_nearly_as_fast() -> None:
    """Over slow links any other split is several times slower; other ZeRO levels,
    presets and micro-batches are not."""
    posed = problem("gpt-1.3b", 2, global_batch=1536, where=over_ethernet())
    found = solve(posed, BranchAndBound(), Limits(runners_up=5))
    in_order(posed, listed(found))
    steps = [posed.value(one) / found.value for one in found.runners_up]
    assert len(steps) == 5
    assert steps[2] < 1.5


def test_the_winner_under_other_shares_of_dp_and_cp_is_one_line() -> None:
    pins = Pins(tp=1, pp=1, micro_batches=4, zero=1, recompute="full")
    posed = problem("gpt-1.3b", 8, global_batch=32, pins=pins)
    space = Space(problem=posed)
    assert set(space.leaves(space.branches).cp) == {1, 2, 4, 8}
    found = solve(posed, BranchAndBound(), Limits(runners_up=5))
    assert found.best is not None
    assert found.runners_up == ()
