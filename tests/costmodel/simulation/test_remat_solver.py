"""The cheapest options that fit: against all ways, and never above the room."""

from __future__ import annotations

from collections import Counter
from itertools import combinations_with_replacement, product

from hypothesis import given
from hypothesis import strategies as st

from costmodel.layout.retention import recompute
from costmodel.simulation.remat_options import Option
from costmodel.simulation.remat_solver import (
    MOST_MIXES,
    Chosen,
    Group,
    fit,
    mixes,
    needed_bytes,
)
from tests.support.retention_menus import joining_menus, menus


@st.composite
def groups(draw: st.DrawFn, most: int) -> list[Group]:
    return [
        Group(
            count=draw(st.integers(1, 3)),
            weight=draw(st.integers(1, 4)),
            options=draw(menus()),
        )
        for _ in range(draw(st.integers(1, most)))
    ]


def all_runs(group: Group) -> list[Chosen]:
    """Every way in which layers take two options at most, the leaner ones first."""
    places = range(len(group.options))
    return [
        (group.options[lean],) * count + (group.options[rich],) * (group.count - count)
        for lean in places
        for rich in places[: lean + 1]
        for count in range(1, group.count + 1)
    ]


@given(joining_menus(), st.integers(1, 7), st.integers(1, 4), st.integers(0, 300))
def test_layers_alike_are_joined_where_that_is_best(
    options: tuple[Option, ...], count: int, weight: int, room: int
) -> None:
    asked = Group(count=count, weight=weight, options=options)
    found, ways = fit([asked], room), all_runs(asked)
    fitting = [way for way in ways if needed_bytes([asked], [way]) <= room]
    if not fitting:
        least = min(needed_bytes([asked], [way]) for way in ways)
        assert needed_bytes([asked], found) == least
        return
    assert needed_bytes([asked], found) <= room
    assert in_all(found[0]) == min(map(in_all, fitting))


def test_joined_layers_keep_one_input_and_are_there_at_once() -> None:
    one = Option(
        retention=recompute("*"),
        recompute_s=3.0,
        saved_bytes=2.0,
        working_bytes=10.0,
        joined=3,
        inside=recompute("*", "in"),
        inside_s=4.0,
        inside_bytes=7.0,
    )
    assert [one.runs(layers) for layers in (1, 3, 4, 7)] == [1, 1, 2, 3]
    assert one.seconds(7) == 3 * 3.0 + 4 * 4.0
    assert one.held_bytes(7) == 6.0
    assert [one.needs_bytes(layers) for layers in (0, 1, 2, 7)] == [0, 10, 17, 24]


def in_all(options: Chosen) -> float:
    return sum(one.seconds(layers) for one, layers in Counter(options).items())


def seconds(chosen: list[Chosen]) -> float:
    return sum(one.recompute_s for options in chosen for one in options)


def all_ways(asked: list[Group]) -> list[list[Chosen]]:
    each = [combinations_with_replacement(one.options, one.count) for one in asked]
    return [list(way) for way in product(*each)]


@given(groups(most=1), st.integers(0, 200))
def test_one_group_is_within_a_layer_of_the_best(asked: list[Group], room: int) -> None:
    found, ways = fit(asked, room), all_ways(asked)
    fitting = [way for way in ways if needed_bytes(asked, way) <= room]
    if not fitting:
        least = min(needed_bytes(asked, way) for way in ways)
        assert needed_bytes(asked, found) == least
        return
    assert needed_bytes(asked, found) <= room
    pairs = [way for way in fitting if len(set(way[0])) <= 2]
    assert seconds(found) == min(map(seconds, pairs))


@given(groups(most=3), st.integers(0, 400))
def test_several_groups_stay_within_the_room(asked: list[Group], room: int) -> None:
    found = fit(asked, room)
    fitting = [way for way in all_ways(asked) if needed_bytes(asked, way) <= room]
    assert [len(one) for one in found] == [one.count for one in asked]
    if needed_bytes(asked, found) > room:
        leanest = [(min(one.options, key=_held),) * one.count for one in asked]
        assert not fitting or needed_bytes(asked, leanest) > room
        return
    dearest = max(
        (after.recompute_s - before.recompute_s)
        for one in asked
        for before in one.options
        for after in one.options
    )
    assert seconds(found) <= min(map(seconds, fitting)) + dearest


@given(groups(most=2), st.integers(0, 300), st.integers(0, 100))
def test_more_room_never_takes_longer_alone(
    asked: list[Group], room: int, more: int
) -> None:
    alone = asked[:1]
    small = fit(alone, room)
    if needed_bytes(alone, small) <= room:
        assert seconds(fit(alone, room + more)) <= seconds(small)


def _held(option: Option) -> float:
    return option.saved_bytes


def test_of_very_many_layers_the_counts_are_thinned_out() -> None:
    """40 options of 100,000 layers would be 160 million rows; both ends are kept."""
    layers = 100_000
    options = tuple(
        Option(
            retention=recompute("*"),
            recompute_s=float(place),
            saved_bytes=40.0 - place,
            working_bytes=1.0,
        )
        for place in range(40)
    )
    known = mixes(layers, options)
    assert len(known.count) <= MOST_MIXES
    assert {1, layers} <= set(known.count)
    group = Group(count=layers, weight=1.0, options=options)
    for room in (20.5 * layers, 40.0 * layers + 1, 1.0 * layers + 1):
        (chosen,) = fit([group], room)
        assert len(chosen) == layers
        assert needed_bytes([group], [chosen]) <= room
        exact = max(40.0 * layers + 1 - room, 0.0)  # a second frees a byte
        assert exact <= seconds([chosen]) <= exact + 0.001 * layers
