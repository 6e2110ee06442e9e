"""The dynamic programme equals trying everything."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import inf

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.heterogeneous.candidates import Option, Ways
from planner.heterogeneous.partition import Part, latency_s, partitions
from tests.support.stage_menus import (
    at_home,
    everything,
    menus,
    option,
    stages_of,
    two_islands,
)


def fits(
    parts: Sequence[Part], options: Sequence[Option], m: int, capacity: float
) -> bool:
    for place, part in enumerate(parts):
        one, here = options[part.option], slice(part.first, part.last + 1)
        in_flight = min(len(parts) - place, m)
        need = one.base_bytes + one.working_bytes[here].max()
        need += (one.state_bytes + in_flight * one.saved_bytes)[here].sum()
        if need > capacity + 1e-9:
            return False
    return True


def slowest(parts: Sequence[Part], options: Sequence[Option]) -> float:
    return max(
        float(options[one.option].seconds[one.first : one.last + 1].sum())
        for one in parts
    )


@pytest.mark.row(
    "F4",
    "dynamic program over stages and meshes, of all",
    expected="the best",
    evidence="computed",
)
@settings(max_examples=150, deadline=None)
@given(menu=menus(), m=st.integers(1, 6), capacity=st.sampled_from([15.0, 40.0, inf]))
def test_equals_the_best_of_all(
    menu: tuple[list[Option], int], m: int, capacity: float
) -> None:
    options, devices = menu
    options = [replace(one, capacity_bytes=capacity) for one in options]
    legal = [
        parts
        for parts in everything(options, 0, devices)
        if fits(parts, options, m, capacity)
    ]
    found = partitions(stages_of(options, devices, m))
    assert bool(found) == bool(legal)
    if not legal:
        return
    best_s = min(latency_s(parts, options, m) for parts in legal)
    assert found[0].seconds == pytest.approx(best_s)
    assert all(fits(one.parts, options, m, capacity) for one in found)
    assert all(
        sum(options[part.option].devices for part in one.parts) == devices
        for one in found
    )


@settings(max_examples=60, deadline=None)
@given(menu=menus())
def test_many_micro_batches_ask_for_the_fastest_slowest_stage(
    menu: tuple[list[Option], int],
) -> None:
    """PipeDream's min-max is the limit."""
    options, devices = menu
    found = partitions(stages_of(options, devices, 10_000))
    if found:
        fastest = min(
            max(options[p.option].seconds[p.first : p.last + 1].sum() for p in parts)
            for parts in everything(options, 0, devices)
        )
        assert slowest(found[0].parts, options) == pytest.approx(fastest)


@settings(max_examples=60, deadline=None)
@given(menu=menus(), m=st.integers(2, 8), tolerance=st.sampled_from([0.05, 0.2]))
def test_passing_over_near_ones_costs_what_it_says(
    menu: tuple[list[Option], int], m: int, tolerance: float
) -> None:
    options, devices = menu
    exact = partitions(stages_of(options, devices, m))
    rough = partitions(stages_of(options, devices, m), tolerance=tolerance)
    assert bool(exact) == bool(rough)
    if exact:
        assert rough[0].seconds <= exact[0].seconds * (1 + tolerance) + 1e-9


def test_heavy_ends_get_fewer_layers() -> None:
    heavy = option(1, [1, 1, 1, 1, 1, 4], [1] * 6)
    (best, *_) = partitions(stages_of([heavy], 2, 50))
    assert [part.first for part in best.parts] == [0, 5] or best.parts[1].first == 4
    assert slowest(best.parts, [heavy]) == 5


def test_early_stages_hold_more_in_flight() -> None:
    """What fits as the last stage does not as the first."""
    lean = replace(option(1, [1, 1], [4, 1]), capacity_bytes=9.0)
    assert not partitions(stages_of([lean], 2, 4))
    assert partitions(stages_of([lean], 2, 1))


@settings(deadline=None)
@given(menus(), st.data(), st.integers(1, 4))
def test_spans_are_kept_and_the_best_of_those_that_keep_them_found(
    menu: tuple[list[Option], int], data: st.DataObject, micro_batches: int
) -> None:
    """Two islands: an option is at home on one of them."""
    options, devices = menu
    border = data.draw(st.integers(0, devices))
    homes = st.sampled_from([(0, border), (border, devices), None])
    placed = [replace(one, span=data.draw(homes)) for one in options]
    best = inf
    for parts in everything(placed, 0, devices):
        if at_home(placed, parts, devices):
            best = min(best, latency_s(parts, placed, micro_batches))
    found = partitions(stages_of(placed, devices, micro_batches))
    assert all(at_home(placed, one.parts, devices) for one in found)
    assert (found[0].seconds if found else inf) == pytest.approx(best)


@settings(deadline=None, max_examples=60)
@given(two_islands(), st.integers(1, 6))
def test_what_is_on_its_way_is_waited_for(
    menu: tuple[list[Option], int], micro_batches: int
) -> None:
    """The best of all is found; nothing is sent that need not be."""
    options, devices = menu
    tilings = everything(options, 0, devices)
    legal = [parts for parts in tilings if at_home(options, parts, devices)]
    best = min((latency_s(one, options, micro_batches) for one in legal), default=inf)
    found = partitions(stages_of(options, devices, micro_batches))
    assert all(one.parts in legal for one in found)
    assert bool(found) == bool(legal)
    if found:
        assert found[0].seconds == pytest.approx(best)


def test_a_stage_waits_for_what_is_on_its_way() -> None:
    one = replace(option(1, [1, 1], [1, 1]), span=(0, 1), ways=Ways(crossed_s=10.0))
    two = replace(one, span=(1, 2), ways=Ways(crossed_s=10.0, arrived_s=14.0))
    (found,) = partitions(stages_of([one, two], 2, 5))
    assert found.seconds == pytest.approx(14 + 4 * 15 / 2)  # takes turns at the link


def test_a_stage_fits_on_the_devices_of_its_own_option() -> None:
    small = replace(option(1, [1.0, 1.0], [1.0, 1.0]), capacity_bytes=1.0)
    assert not partitions(stages_of([small], 2, 1))
    large = replace(small, capacity_bytes=99.0)
    (found,) = partitions(stages_of([small, large], 1, 1))
    assert {part.option for part in found.parts} == {1}
