"""The bound of all cuts equals the least that trying them all finds."""

from __future__ import annotations

from dataclasses import replace
from itertools import accumulate
from math import inf

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.stage_bound import CLOSE, cut_bound_s, least_bytes
from planner.stage_partition import Option, Part
from tests.stage_menus import everything, menus, option


def filled_s(parts: tuple[Part, ...], options: list[Option], m: int) -> float:
    """max over s of Σ_{i<s} t_i + m · t_s; infinite where a stage cannot fit."""
    seconds = [
        float(options[one.option].seconds[one.first : one.last + 1].sum())
        for one in parts
    ]
    for one in parts:
        option = options[one.option]
        if least_bytes(option, m)[one.first, one.last] > option.capacity_bytes:
            return inf
    before = [0.0, *accumulate(seconds)]
    return max(b + m * s for b, s in zip(before, seconds, strict=False))


@settings(deadline=None, max_examples=60)
@given(menu=menus(), m=st.integers(1, 4), room=st.sampled_from([inf, 12.0, 20.0]))
def test_no_cut_is_below_and_one_is_near(
    menu: tuple[list[Option], int], m: int, room: float
) -> None:
    options, devices = menu
    options = [_with_room(one, room) for one in options]
    cuts = everything(options, 0, devices)
    least = min((filled_s(parts, options, m) for parts in cuts), default=inf)
    found = cut_bound_s(
        options,
        [one.seconds for one in options],
        devices=devices,
        micro_batches=m,
        at_most_s=1000.0,
    )
    assert found <= least * (1 + 1e-9)
    assert found >= min(least, 1000.0) * (1 - 2 * CLOSE)


def test_what_is_enough_is_not_exceeded() -> None:
    small = _with_room(option(1, [1, 2], [1, 1]), 0.5)
    bound = cut_bound_s(
        [small], [small.seconds], devices=1, micro_batches=1, at_most_s=7.0
    )
    assert bound == pytest.approx(7.0)


def _with_room(one: Option, room: float) -> Option:
    return replace(one, capacity_bytes=room)
