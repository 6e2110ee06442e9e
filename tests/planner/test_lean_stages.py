"""The leanest stages are as lean as any, and no partition is below the bound."""

from __future__ import annotations

from dataclasses import replace
from math import inf

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from costmodel.estimate import estimate
from costmodel.pins import Pins
from planner.branch_and_bound import BranchAndBound
from planner.check import check
from planner.lean_stages import leanest
from planner.plan import solve, widen
from planner.problem import Objective
from planner.search import Limits
from planner.solution import EXACT
from planner.stage_layers import Option
from planner.stage_menu import menus
from planner.stage_partition import Part
from tests.islands import asked, joined
from tests.problems import on, problem
from tests.stage_menus import at_home, everything, two_islands


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
    found = leanest(options, devices=devices, micro_batches=m)
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
    lower = leanest(menu.options, devices=gpus, micro_batches=m).peak_bytes
    for partition in menu.best()[:6]:
        layout = menu.layout(partition)
        run = estimate(posed.job, posed.machine.cluster, layout, on=posed.machine)
        assert run.peak_needed_bytes >= lower * (1 - EXACT)
