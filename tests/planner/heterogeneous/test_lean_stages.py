"""The leanest stages are as lean as any, and no partition is below the bound."""

from __future__ import annotations

from dataclasses import replace
from math import inf

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from costmodel.layout.strategy import Uniform
from costmodel.options.pins import Pins
from costmodel.simulation.estimator import estimate
from planner.api import solve, widen
from planner.heterogeneous.bound import Late, never
from planner.heterogeneous.candidate_set import menus
from planner.heterogeneous.candidates import Option
from planner.heterogeneous.lean_search import leanest_of_any
from planner.heterogeneous.lean_stages import Cuts, Lean
from planner.heterogeneous.partition import Part
from planner.problem.problem import Objective
from planner.problem.solution import EXACT
from planner.search.branch_and_bound import BranchAndBound
from planner.search.search import Clock, Limits
from planner.search.verify import check
from tests.support.islands import asked, joined
from tests.support.problems import on, problem
from tests.support.stage_menus import at_home, everything, two_islands


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
    found = Cuts.of(options, devices=devices, micro_batches=m).leanest()
    assert found.peak_bytes == pytest.approx(least)
    if found.partition is not None:
        assert fullest(found.partition.parts, options, m) == pytest.approx(least)


def test_memory_is_an_objective_over_unlike_islands() -> None:
    posed = asked(joined("dgx-a100-80gb", "p3.16xlarge"), batch=8)
    fast = solve(posed, BranchAndBound(), Limits())
    lean = replace(posed, objective=Objective.MEMORY)
    found = solve(lean, BranchAndBound(), Limits())
    check(lean, found)
    assert found.best is not None
    assert fast.best is not None
    assert found.value == found.best.estimate.peak_needed_bytes
    assert found.value < fast.best.estimate.peak_needed_bytes
    assert found.lower == pytest.approx(found.value), "the programme's bytes are needed"


def test_few_menus_are_halved_and_none_is_leaner(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    posed = asked(joined("dgx-a100-80gb", "p3.16xlarge"), batch=8)
    lean = replace(posed, objective=Objective.MEMORY)
    every = [
        Cuts.of(menu.options, devices=lean.gpus, micro_batches=menu.micro_batches)
        for menu in menus(lean)
        if menu.options
    ]
    least = min(one.leanest().peak_bytes for one in every)
    halved, leaner = list[Cuts](), Cuts.leaner

    def counted(cuts: Cuts, best: Lean, late: Late = never) -> Lean:
        halved.append(cuts)
        return leaner(cuts, best, late)

    monkeypatch.setattr(Cuts, "leaner", counted)
    clock = Clock(limits=Limits())
    found = leanest_of_any(lean, Uniform(), inf, clock, alone=True)
    assert found.complete
    assert found.lower == pytest.approx(least)
    assert 0 < found.simulated < len(halved) < len(every) / 2
    halved.clear()
    best = lean.value(found.candidates[0])
    again = leanest_of_any(lean, Uniform(), best, clock, alone=False)
    assert (again.simulated, halved) == (0, []), "one look tells that none is leaner"


def test_halving_ends_once_it_is_late() -> None:
    """With the leanest stages so far, which fit."""
    posed = asked(joined("dgx-a100-80gb", "p3.16xlarge"), "gpt-125m", 8)
    every = (
        Cuts.of(menu.options, devices=16, micro_batches=menu.micro_batches)
        for menu in menus(posed)
        if menu.options
    )
    cuts, some, leanest = next(
        (one, some, leanest)
        for one in every
        for some, leanest in [(one.within(inf), one.leanest())]
        if leanest.peak_bytes < some.peak_bytes
    )
    assert cuts.leaner(some, lambda: True) == some
    looks = iter([False, False, True])
    soon = cuts.leaner(some, lambda: next(looks))
    assert leanest.peak_bytes <= soon.peak_bytes <= some.peak_bytes


def test_without_time_one_lean_layout_is_found() -> None:
    posed = asked(joined("dgx-a100-80gb", "p3.16xlarge"), batch=8)
    lean = replace(posed, objective=Objective.MEMORY)
    whole = solve(lean, BranchAndBound(), Limits())
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
    menu = data.draw(st.sampled_from([one for one in menus(posed) if one.options]))
    m = menu.micro_batches
    lower = Cuts.of(menu.options, devices=gpus, micro_batches=m).leanest().peak_bytes
    for partition in menu.best()[:6]:
        layout = menu.layout(partition)
        run = estimate(posed.job, posed.machine.cluster, layout, on=posed.machine)
        assert run.peak_needed_bytes >= lower * (1 - EXACT)
