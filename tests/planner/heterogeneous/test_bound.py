"""The bound of all cuts is below every one that is run, and near the best of them."""

from __future__ import annotations

from dataclasses import replace
from math import inf

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.heterogeneous.bound import CLOSE, Bound
from planner.heterogeneous.candidates import Option, Ways
from tests.support.stage_menus import (
    at_home,
    everything,
    menus,
    option,
    reductions,
    run_s,
    stages_of,
    timed,
    two_islands,
)


def bound_s(options: list[Option], devices: int, m: int) -> float:
    return Bound(stages_of(options, devices, m)).seconds(at_most_s=1000.0)[0]


@settings(deadline=None, max_examples=60)
@given(
    menu=st.one_of(menus(), two_islands()),
    reduced=reductions,
    stepped=st.sampled_from([0.0, 0.5]),
    m=st.integers(1, 6),
    room=st.sampled_from([inf, 12.0, 20.0]),
)
def test_no_partition_is_below(
    menu: tuple[list[Option], int],
    reduced: list[float],
    stepped: float,
    m: int,
    room: float,
) -> None:
    options, devices = menu
    options = [
        replace(timed(one, 0.4, by, stepped), capacity_bytes=room)
        for one, by in zip(options, reduced, strict=False)
    ]
    cuts = everything(options, 0, devices)
    legal = [parts for parts in cuts if at_home(options, parts, devices)]
    least = min((run_s(parts, options, m) for parts in legal), default=inf)
    found = bound_s(options, devices, m)
    assert found <= least * (1 + 1e-9)
    assert least < inf or found == 1000.0


def test_it_is_near_where_stages_are_balanced() -> None:
    """Four stages of two layers, which 1F1B fills and empties: exact."""
    one = timed(option(1, [1.0] * 8, [1.0] * 8), 0.4)
    assert bound_s([one], 4, 6) == pytest.approx(2.0 * (6 + 3), rel=2 * CLOSE)


def test_memory_of_what_is_in_flight_is_asked_for() -> None:
    """Two stages hold two and one micro-batch, which only two devices for the first
    layers have room for."""
    small = replace(option(1, [1, 1], [4, 1]), capacity_bytes=9.0)
    assert bound_s([small], 2, 4) == 1000.0
    assert bound_s([replace(small, capacity_bytes=99.0)], 2, 4) < 6


def test_a_slow_link_is_waited_for_by_two_in_flight() -> None:
    """Two stages of a second, ten there and back: four micro-batches go in two trips,
    and of each two the second is five seconds behind: it is what they take."""
    one = replace(option(1, [1, 1], [1, 1]), span=(0, 1), ways=Ways(crossed_s=10.0))
    two = replace(one, span=(1, 2), ways=Ways(crossed_s=10.0, arrived_s=10.0))
    assert bound_s([one, two], 2, 4) == pytest.approx(29.0, rel=2 * CLOSE)


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
    options = [timed(one, 0.5, first), timed(replace(one, span=(1, 2)), 0.5, second)]
    found = bound_s(options, 2, 4)
    assert seconds * 0.8 <= found <= seconds


def test_halving_ends_once_it_is_late() -> None:
    """With what is known by then."""
    bound = Bound(stages_of([option(1, [1.0] * 8, [1.0] * 8)], 4, 6))
    looks = iter([False, False, False, True, True])
    late_s, likely = bound.seconds(at_most_s=64.0, late=lambda: next(looks))
    assert 0 < late_s < bound.seconds(at_most_s=64.0)[0]
    assert likely
    assert bound.seconds(at_least_s=1.0, at_most_s=64.0, late=lambda: True)[0] == 1.0
