"""The bound of all cuts equals the least that trying them all finds."""

from __future__ import annotations

from dataclasses import replace
from itertools import accumulate
from math import inf

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.heterogeneous.bound import CLOSE, cut_bound_s, least_bytes
from planner.heterogeneous.candidates import Option
from planner.heterogeneous.partition import Part
from planner.heterogeneous.stage_costs import Passes
from tests.support.stage_menus import (
    everything,
    late_s,
    menus,
    option,
    passes_of,
    reductions,
)


def filled_s(
    parts: tuple[Part, ...], options: list[Option], passes: list[Passes], m: int
) -> float:
    """max over s of Σ_{i<s} t_i + m · t_s, and of Σ_{i<s} f_i + m · t_s + late_s, where
    late_0 is in every t_0 before; infinite where a stage cannot fit."""
    seconds = [
        float(options[one.option].seconds[one.first : one.last + 1].sum())
        for one in parts
    ]
    for one in parts:
        option = options[one.option]
        if least_bytes(option, m)[one.first, one.last] > option.capacity_bytes:
            return inf
    late = [late_s(one, passes[one.option]) for one in parts]
    behind = [seconds[0] + late[0], *seconds[1:]]
    before = [0.0, *accumulate(behind)]
    there = [0.0, *accumulate(0.4 * one for one in seconds)]
    runs = zip(before, there, seconds, late, strict=False)
    return max(max(b + m * s, f + m * s + over) for b, f, s, over in runs)


@settings(deadline=None, max_examples=60)
@given(
    menu=menus(),
    reduced=reductions,
    m=st.integers(1, 4),
    room=st.sampled_from([inf, 12.0, 20.0]),
)
def test_no_cut_is_below_and_one_is_near(
    menu: tuple[list[Option], int], reduced: list[float], m: int, room: float
) -> None:
    options, devices = menu
    passes = [
        passes_of(one, 0.4, by) for one, by in zip(options, reduced, strict=False)
    ]
    options = [_with_room(one, room) for one in options]
    cuts = everything(options, 0, devices)
    every = [filled_s(parts, options, passes, m) for parts in cuts]
    least = min(every, default=inf)
    found = cut_bound_s(
        options,
        passes,
        devices=devices,
        micro_batches=m,
        at_most_s=1000.0,
    )
    assert found <= least * (1 + 1e-9)
    assert found >= min(least, 1000.0) * (1 - 2 * CLOSE)


def test_what_is_enough_is_not_exceeded() -> None:
    small = _with_room(option(1, [1, 2], [1, 1]), 0.5)
    bound = cut_bound_s(
        [small], [passes_of(small)], devices=1, micro_batches=1, at_most_s=7.0
    )
    assert bound == pytest.approx(7.0)


def _with_room(one: Option, room: float) -> Option:
    return replace(one, capacity_bytes=room)
