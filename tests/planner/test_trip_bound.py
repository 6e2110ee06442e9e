"""The bound of what goes there and back is below all ways to try it."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from math import ceil, inf

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.stage_bound import CLOSE
from planner.stage_partition import Option, Part
from planner.trip_bound import trip_bound_s
from tests.stage_menus import at_home, everything, option, two_islands


def run_s(parts: tuple[Part, ...], options: list[Option], m: int) -> float:
    """The least that 1F1B takes of *parts*; infinite where a stage cannot fit."""
    chosen = [options[one.option] for one in parts]
    seconds = [
        float(each.seconds[one.first : one.last + 1].sum())
        for one, each in zip(parts, chosen, strict=True)
    ]
    ways = [
        max(here.crossed_s, there.arrived_s) if here.span != there.span else here.sent_s
        for here, there in pairwise(chosen)
    ]
    each = [s + x for s, x in zip(seconds, [*ways, 0.0], strict=True)]
    found = 0.0
    for place, one in enumerate(parts):
        in_flight = len(parts) - place
        here = slice(one.first, one.last + 1)
        kept = chosen[place].state_bytes[here].sum()
        kept += min(in_flight, m) * chosen[place].saved_bytes[here].sum()
        if kept > chosen[place].capacity_bytes:
            return inf
        before, trip = sum(each[:place]), sum(each[place:])
        worked = before + m * seconds[place]
        found = max(found, worked, before + ceil(m / in_flight) * trip)
    return found


@settings(deadline=None, max_examples=60)
@given(menu=two_islands(), m=st.integers(1, 6), room=st.sampled_from([inf, 12.0, 20.0]))
def test_no_partition_is_below(
    menu: tuple[list[Option], int], m: int, room: float
) -> None:
    options, devices = menu
    options = [replace(one, capacity_bytes=room) for one in options]
    cuts = everything(options, 0, devices)
    legal = [parts for parts in cuts if at_home(options, parts, devices)]
    least = min((run_s(parts, options, m) for parts in legal), default=inf)
    busy_s = [one.seconds for one in options]
    found = trip_bound_s(
        options, busy_s, devices=devices, micro_batches=m, at_most_s=1000.0
    )
    assert found <= least * (1 + 1e-9)
    assert least < inf or found == 1000.0


def test_a_slow_link_is_waited_for_by_two_in_flight() -> None:
    """Two stages of a second, ten on the way: four micro-batches go in two trips."""
    one = replace(option(1, [1, 1], [1, 1]), span=(0, 1), crossed_s=10.0)
    two = replace(one, span=(1, 2), arrived_s=3.0)
    busy_s = [one.seconds, two.seconds]
    found = trip_bound_s([one, two], busy_s, devices=2, micro_batches=4, at_most_s=99.0)
    assert found == pytest.approx(24.0, rel=2 * CLOSE)
