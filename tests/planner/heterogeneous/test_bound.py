"""The bound of what goes there and back is below all ways to try it."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from math import inf

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.heterogeneous.bound import CLOSE, StagesHeld, trip_bound_s
from planner.heterogeneous.candidates import Option, Ways
from planner.heterogeneous.partition import Part
from planner.heterogeneous.stage_costs import Passes
from tests.support.stage_menus import (
    at_home,
    everything,
    late_s,
    option,
    passes_of,
    reductions,
    two_islands,
)


def run_s(
    parts: tuple[Part, ...], options: list[Option], passes: list[Passes], m: int
) -> float:
    """The least that 1F1B takes of *parts*; infinite where a stage cannot fit."""
    chosen = [options[one.option] for one in parts]
    seconds = [
        float(each.seconds[one.first : one.last + 1].sum())
        for one, each in zip(parts, chosen, strict=True)
    ]
    ways = [
        here.ways.sent_s
        if here.span == there.span
        else max(here.ways.crossed_s, there.ways.arrived_s)
        for here, there in pairwise(chosen)
    ]
    each = [s + x for s, x in zip(seconds, [*ways, 0.0], strict=True)]
    late = [late_s(one, passes[one.option]) for one in parts]
    there = [0.4 * s + x / 2 for s, x in zip(seconds, [*ways, 0.0], strict=True)]
    found = 0.0
    for place, one in enumerate(parts):
        in_flight = len(parts) - place
        held = chosen[place].stages_bytes(min(in_flight, m))
        if held[one.first, one.last] > chosen[place].capacity_bytes:
            return inf
        before, trip = sum(each[:place]), sum(each[place:])
        worked = before + m * seconds[place]
        trips, passed = divmod(m - 1, in_flight)
        waited = before + (1 + trips) * trip
        waited += passed * max(seconds[place:]) if trips else 0.0
        reduced = sum(there[:place]) + m * seconds[place] + late[place]
        found = max(found, worked, waited, reduced - late[0])
        if in_flight > 1:
            behind = min(in_flight - 2, m - 1)
            trips, passed = divmod(m - 1 - behind, 2)
            turn = each[place] + seconds[place + 1]
            behind += passed if trips else 0
            turns = (1 + trips) * turn + behind * seconds[place]
            found = max(found, before + turns)
    return found + late[0]


@settings(deadline=None, max_examples=60)
@given(
    menu=two_islands(),
    reduced=reductions,
    m=st.integers(1, 6),
    room=st.sampled_from([inf, 12.0, 20.0]),
)
def test_no_partition_is_below(
    menu: tuple[list[Option], int], reduced: list[float], m: int, room: float
) -> None:
    options, devices = menu
    passes = [
        passes_of(one, 0.4, by) for one, by in zip(options, reduced, strict=False)
    ]
    options = [replace(one, capacity_bytes=room) for one in options]
    cuts = everything(options, 0, devices)
    legal = [parts for parts in cuts if at_home(options, parts, devices)]
    every = [run_s(parts, options, passes, m) for parts in legal]
    least = min(every, default=inf)
    stages = StagesHeld(options, passes, devices=devices, micro_batches=m)
    found = trip_bound_s(stages, at_most_s=1000.0)
    assert found <= least * (1 + 1e-9)
    assert least < inf or found == 1000.0


def test_a_slow_link_is_waited_for_by_two_in_flight() -> None:
    """Two stages of a second, ten on the way: four micro-batches go in two trips,
    and the last passes a second behind the third: it is what they take."""
    one = replace(option(1, [1, 1], [1, 1]), span=(0, 1), ways=Ways(crossed_s=10.0))
    two = replace(one, span=(1, 2), ways=Ways(crossed_s=10.0, arrived_s=3.0))
    passes = [passes_of(one), passes_of(two)]
    stages = StagesHeld([one, two], passes, devices=2, micro_batches=4)
    found = trip_bound_s(stages, at_most_s=99.0)
    assert found == pytest.approx(25.0, rel=2 * CLOSE)


@pytest.mark.parametrize(
    ("first", "second", "seconds"), [(0, 0, 5), (8, 0, 10.25), (0, 8, 6.5)]
)
def test_a_reduction_that_is_late_is_waited_for(
    first: float, second: float, seconds: float
) -> None:
    """Of four layers in two stages, with four micro-batches. Two and two take 5 s; a
    reduction of 4 s a layer makes it better to have one layer where it is: at the
    first stage 0.5 + 4 · 1.5 s and 3.75 s late, at the last 0.75 + 4 · 0.5 s and as
    much.
    """
    one = replace(option(1, [0.5, 0.5, 0.5, 0.5], [1, 1, 1, 1]), span=(0, 1))
    two = replace(one, span=(1, 2))
    passes = [passes_of(one, 0.5, first), passes_of(two, 0.5, second)]
    stages = StagesHeld([one, two], passes, devices=2, micro_batches=4)
    found = trip_bound_s(stages, at_most_s=99.0)
    assert found == pytest.approx(seconds, rel=2 * CLOSE)
