"""The leanest stages are as lean as any, and no partition is below the bound."""

from __future__ import annotations

from dataclasses import replace
from math import inf

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from costmodel.options.pins import Pins
from costmodel.simulation.estimator import estimate
from planner.api import solve, widen
from planner.heterogeneous.candidate_set import menus
from planner.heterogeneous.candidates import Option
from planner.heterogeneous.min_memory import fitting, leanest
from planner.heterogeneous.partition import Part
from planner.problem.problem import Objective, Problem
from planner.problem.solution import EXACT, Solution
from planner.search.branch_and_bound import BranchAndBound
from planner.search.search import Limits
from planner.search.verify import check
from tests.support.islands import asked, joined
from tests.support.problems import on, problem
from tests.support.stage_menus import at_home, everything, stages_of, two_islands


def fullest(parts: tuple[Part, ...], options: list[Option], m: int) -> float:
    """Bytes of the fullest stage; infinite where one cannot be."""
    found = 0.0
    for place, part in enumerate(parts):
        option = options[part.option]
        held = option.stages_bytes(min(len(parts) - place, m))[part.first, part.last]
        found = max(found, held if held <= option.capacity_bytes else inf)
    return found


@settings(deadline=None, max_examples=60)
@given(menu=two_islands(), m=st.integers(1, 6), room=st.sampled_from([inf, 12.0, 20.0]))
def test_no_partition_needs_less(
    menu: tuple[list[Option], int], m: int, room: float
) -> None:
    options, devices = menu
    options = [replace(one, capacity_bytes=room) for one in options]
    cuts = everything(options, 0, devices)
    legal = [parts for parts in cuts if at_home(options, parts, devices)]
    least = min((fullest(parts, options, m) for parts in legal), default=inf)
    found = leanest(stages_of(options, devices, m))
    assert (found.peak_bytes if found else inf) == pytest.approx(least)
    if found is not None:
        assert fullest(found.partition.parts, options, m) == pytest.approx(least)


@pytest.fixture(scope="module")
def leanest_of_all() -> tuple[Problem, Solution]:
    posed = asked(joined("dgx-a100-80gb", "p3.16xlarge"), batch=8)
    lean = replace(posed, objective=Objective.MEMORY)
    return lean, solve(lean, BranchAndBound(), Limits())


def test_memory_is_an_objective_over_unlike_islands(
    leanest_of_all: tuple[Problem, Solution],
) -> None:
    lean, found = leanest_of_all
    posed = replace(lean, objective=Objective.THROUGHPUT)
    fast = solve(posed, BranchAndBound(), Limits())
    check(lean, found)
    assert found.best is not None
    assert fast.best is not None
    assert found.value == found.best.estimate.peak_needed_bytes
    assert found.value < fast.best.estimate.peak_needed_bytes
    assert found.lower == pytest.approx(found.value), "the programme's bytes are needed"


def test_halving_ends_once_it_is_late() -> None:
    """With the leanest stages so far, which fit."""
    posed = asked(joined("dgx-a100-80gb", "p3.16xlarge"), "gpt-125m", 8)
    stages, some, least = next(
        (menu.stages, some, least)
        for menu in menus(posed)
        for some, least in [(fitting(menu.stages), leanest(menu.stages))]
        if some is not None and least is not None
        if least.peak_bytes < some.peak_bytes
    )
    assert leanest(stages, late=lambda: True) == some
    looks = iter([False, False, True])
    soon = leanest(stages, late=lambda: next(looks))
    assert soon is not None
    assert least.peak_bytes <= soon.peak_bytes <= some.peak_bytes
    assert leanest(stages, below_bytes=least.peak_bytes) is None


def test_without_time_one_lean_layout_is_found(
    leanest_of_all: tuple[Problem, Solution],
) -> None:
    lean, whole = leanest_of_all
    found = solve(lean, BranchAndBound(), Limits(time_limit_s=0.0))
    check(lean, found)
    assert found.best is not None
    assert not found.complete
    assert found.counters.considered < whole.counters.considered
    assert found.lower <= whole.value <= found.value


def test_memory_is_an_objective_of_unlike_stages() -> None:
    posed = problem(gpus=6, global_batch=12, objective=Objective.MEMORY)
    alike = BranchAndBound().solve(posed, Limits())
    found = widen(posed, alike, Limits())
    assert found.value <= alike.value
    assert found.wider is not None
    assert 0 < found.lower <= found.value


@settings(max_examples=8, deadline=None)
@given(gpus=st.sampled_from([2, 3, 4, 8]), zero=st.integers(0, 3), data=st.data())
def test_no_partition_is_simulated_with_less(
    gpus: int, zero: int, data: st.DataObject
) -> None:
    where = on("p3.16xlarge")
    posed = problem(gpus=gpus, where=where, global_batch=12, pins=Pins(zero=zero))
    menu = data.draw(st.sampled_from(list(menus(posed))))
    lean = leanest(menu.stages)
    assert lean is not None
    for partition in menu.best()[:6]:
        layout = menu.layout(partition)
        run = estimate(posed.job, posed.machine.cluster, layout, on=posed.machine)
        assert run.peak_needed_bytes >= lean.peak_bytes * (1 - EXACT)
