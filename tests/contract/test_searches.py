"""Every search, held to its certificate by the oracle.

Provers see all of the space and bound what they do not simulate. Baselines look at some
of it: what they find is legal, fits, keeps the pins and is no better than the proven
optimum; what they do not find may still be there.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations
from math import inf

import pytest
from hypothesis import given, note, settings

from costmodel.layout.strategy import Uniform
from costmodel.options.pins import Pins
from costmodel.support.legality import violations
from costmodel.support.support_table import refusals
from planner.api import DEFAULT, solve
from planner.baselines.exhaustive import Exhaustive
from planner.baselines.mcmc import Mcmc
from planner.problem.pin_checks import layout_pins
from planner.problem.problem import Problem
from planner.problem.solution import EXACT, Solution, Status
from planner.search.branch_and_bound import BranchAndBound
from planner.search.registry import BASELINES, PROVERS, SEARCHES
from planner.search.search import AbstractSearch, Limits
from planner.search.shortlist import NEGLIGIBLE, family, split
from planner.search.verify import check
from profiles.errors import OutOfTime
from tests.support.problems import local, problem, small_problems

FEW = Pins(recompute="none", sequence_parallel=False, zero=1)
each_search = pytest.mark.parametrize("search", SEARCHES.values(), ids=SEARCHES)
each_prover = pytest.mark.parametrize(
    "search", [SEARCHES[name] for name in PROVERS], ids=PROVERS
)
each_baseline = pytest.mark.parametrize(
    "search", [SEARCHES[name] for name in BASELINES], ids=BASELINES
)
QUICK = {"mcmc": Mcmc(proposals=60)}  # the contract holds for any budget


def certified(posed: Problem, found: Solution) -> None:
    """What any solution must be able to show."""
    counters = found.counters
    assert counters.simulated + counters.pruned == counters.considered
    assert min(counters.simulated, counters.by_memory, counters.by_value) >= 0
    if found.best is None:
        assert (found.status, found.gap) == (Status.INFEASIBLE, 1.0)
        return
    assert list(violations(found.best.choice, posed.job, posed.machine.cluster)) == []
    assert found.best.estimate.peak_needed_bytes <= posed.memory_limit_bytes
    assert found.value == posed.value(found.best)
    assert 0 <= found.lower <= found.value
    assert found.gap == pytest.approx(1 - found.lower / found.value, abs=1e-12)
    assert (found.status is Status.OPTIMAL) == (found.gap == 0)


@given(posed=small_problems())
@settings(max_examples=10)
def test_a_baseline_is_legal_and_never_beats_the_proof(posed: Problem) -> None:
    """All of them, as what is drawn and proven is the same for each."""
    proven = solve(posed, BranchAndBound(), Limits(runners_up=0))
    for name in BASELINES:
        note(name)
        found = solve(posed, QUICK.get(name, SEARCHES[name]), Limits())
        certified(posed, found)
        assert not found.complete
        assert found.value >= proven.lower * (1 - EXACT)
        for one in (found.best, *found.runners_up):
            if one is not None:
                kept(posed, one.choice)


def kept(posed: Problem, choice: Uniform) -> None:
    """Each pinned dimension is as pinned."""
    asked = {**layout_pins(posed.pins)}
    batches = asked.pop("micro_batches", None)
    assert batches in (None, choice.micro_batches(posed.job.global_batch))
    nowhere = choice.cp == 1 and "cp" not in asked
    for name, value in asked.items():
        if name == "cp_kind" and nowhere:
            continue
        assert getattr(choice, name) == value, name


@given(posed=small_problems())
@settings(max_examples=10)
def test_a_search_keeps_its_word(posed: Problem) -> None:
    oracle = Exhaustive().solve(posed, Limits(runners_up=0))
    for name in PROVERS:
        note(name)
        found = solve(posed, SEARCHES[name], Limits())
        certified(posed, found)
        assert (found.best is None) == (oracle.best is None)
        assert found.lower * (1 - EXACT) <= oracle.value <= found.value
        if found.status is Status.OPTIMAL:
            assert found.value == pytest.approx(oracle.value, rel=2 * EXACT)
        if oracle.best is not None:
            fastest_s = oracle.best.estimate.step_time_s
            assert found.lower_step_time_s <= fastest_s * (1 + EXACT)


@each_prover
def test_runners_up_are_unlike_each_other_and_in_order(search: AbstractSearch) -> None:
    posed = problem(gpus=4, global_batch=4, pins=FEW)
    found = solve(posed, search, Limits(runners_up=4))
    assert found.best is not None
    several = [found.best, *found.runners_up]
    values = [posed.value(one) for one in several]
    assert len(several) == 5
    assert values == sorted(values)
    for one, other in combinations(several, 2):
        if split(one.choice) == split(other.choice):
            assert family(one.choice) != family(other.choice)
            assert posed.value(other) >= posed.value(one) * (1 + NEGLIGIBLE)


@each_prover
def test_where_degrees_are_pinned_runners_up_differ_otherwise(
    search: AbstractSearch,
) -> None:
    pins = Pins(tp=1, pp=1, dp=2, cp=1)
    found = solve(problem(gpus=2, pins=pins), search, Limits(runners_up=3))
    assert found.best is not None
    several = {one.choice for one in (found.best, *found.runners_up)}
    assert len(several) == 4


@each_search
def test_what_does_not_fit_is_infeasible_not_an_error(search: AbstractSearch) -> None:
    found = solve(problem(gpus=2, limit_bytes=1.0), search, Limits())
    assert found.status is Status.INFEASIBLE
    assert (found.best, found.value, found.runners_up) == (None, inf, ())


@each_search
def test_no_time_at_all_is_said(search: AbstractSearch) -> None:
    if search.name == DEFAULT:  # which gives some layout
        found = solve(problem(), search, Limits(time_limit_s=0.0))
        assert (found.complete, found.gap) == (False, 1.0)
        return
    with pytest.raises(OutOfTime, match="--time-limit"):
        solve(problem(), search, Limits(time_limit_s=0.0))


@each_search
def test_whoever_watches_sees_the_gap_close(search: AbstractSearch) -> None:
    seen: list[tuple[float, float]] = []
    limits = Limits(watch=lambda now: seen.append((now.value, now.lower)))
    posed = problem(gpus=2, global_batch=2)
    found = solve(posed, search, limits)
    values, bounds = zip(*seen, strict=True)
    assert list(values) == sorted(values, reverse=True)
    assert list(bounds) == sorted(bounds)
    assert values[-1] == found.value


@each_search
def test_the_answer_is_the_same_each_time(search: AbstractSearch) -> None:
    posed = problem(gpus=4, global_batch=4, pins=FEW)
    first, second = (solve(posed, search, Limits()) for _ in range(2))
    assert first.best is not None
    assert second.best is not None
    assert first.best.choice == second.best.choice
    assert first.counters == second.counters


@each_baseline
def test_a_baseline_plans_only_what_is_carried_out(search: AbstractSearch) -> None:
    posed = problem(gpus=4, where=local(), executable=True)
    found = solve(posed, QUICK.get(search.name, search), Limits(runners_up=0))
    assert found.best is not None
    assert refusals(found.best.choice, posed.job) == []


def test_a_search_that_cheats_is_caught() -> None:
    posed = problem(gpus=2)
    honest = solve(posed, Exhaustive(), Limits(runners_up=0))
    check(posed, honest)
    for lie in (
        replace(honest, lower=honest.value * 2),
        replace(honest, value=honest.value / 2, lower=0.0),
    ):
        with pytest.raises(AssertionError):
            check(posed, lie)
    with pytest.raises(AssertionError):
        check(replace(posed, memory_limit_bytes=1.0), honest)
