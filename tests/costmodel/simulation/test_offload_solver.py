"""Recompute and offload together: against all ways, and never behind either alone."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from costmodel.simulation.offload_solver import (
    STEPS,
    Leaving,
    Link,
    fit_away,
    needed_bytes,
)
from costmodel.simulation.remat_solver import Group, fit, mixes
from costmodel.simulation.remat_solver import needed_bytes as needed_here
from tests.support.retention_menus import joining_menus

RATES = st.sampled_from([0.5, 2.0, 10.0])
NEARLY = 1 + 1e-9


@st.composite
def leaving(draw: st.DrawFn) -> Leaving:
    forward_s = draw(st.integers(0, 20))
    return Leaving(
        group=Group(
            count=draw(st.integers(1, 4)),
            weight=draw(st.integers(1, 4)),
            options=draw(joining_menus()),
        ),
        link=Link(
            bytes_per_s=draw(RATES), forward_s=forward_s, backward_s=2 * forward_s
        ),
    )


def all_ways(asked: Leaving, steps: int) -> list[tuple[float, float]]:
    """Seconds, and bytes held and in work, of every mix with every share."""
    group, found = asked.group, []
    ways = mixes(group.count, group.options)
    for row, step in product(range(len(ways.count)), range(steps + 1)):
        share = step / steps
        away = share * ways.held_bytes[row]
        buffers = share * min(2 * ways.widest_bytes[row], ways.held_bytes[row])
        held = group.weight * (ways.held_bytes[row] - away) + buffers
        waits = asked.link.waits_s(away, ways.seconds[row])
        found.append((ways.seconds[row] + waits, held + ways.working_bytes[row]))
    return found


@given(leaving(), st.integers(0, 200))
def test_one_group_is_the_best_of_all_mixes_and_shares(
    asked: Leaving, room: int
) -> None:
    [found] = fit_away([asked], room)
    ways = all_ways(asked, STEPS // 20)
    fitting = [seconds for seconds, needed in ways if needed <= room]
    if needed_bytes([found]) > room * NEARLY:
        assert not fitting
        return
    assert found.seconds <= min(fitting, default=found.seconds) * NEARLY


@given(leaving(), st.integers(0, 200))
def test_it_is_never_behind_making_again_alone(asked: Leaving, room: int) -> None:
    alone = fit([asked.group], room)
    if needed_here([asked.group], alone) > room:
        return
    counts = {one: alone[0].count(one) for one in alone[0]}
    again = sum(one.seconds(layers) for one, layers in counts.items())
    [found] = fit_away([asked], room)
    assert needed_bytes([found]) <= room * NEARLY
    assert found.seconds <= again * NEARLY


@given(st.lists(leaving(), min_size=2, max_size=3), st.integers(0, 500))
def test_several_groups_stay_within_the_room_and_near_the_best(
    asked: list[Leaving], room: int
) -> None:
    found = fit_away(asked, room)
    assert [len(did.options) for did in found] == [one.group.count for one in asked]
    alone = [fit_away([one], room / len(asked))[0] for one in asked]
    if all(needed_bytes([one]) <= room / len(asked) for one in alone):
        assert needed_bytes(found) <= room * NEARLY
    if needed_bytes(found) <= room:
        least = [min(seconds for seconds, _ in all_ways(one, 1)) for one in asked]
        assert sum(did.seconds for did in found) >= sum(least) / NEARLY


@given(leaving(), st.integers(0, 200), st.integers(0, 50))
def test_more_room_or_a_faster_link_never_takes_longer(
    asked: Leaving, room: int, more: int
) -> None:
    [small], [large] = fit_away([asked], room), fit_away([asked], room + more)
    if needed_bytes([small]) > room * NEARLY:
        return
    # Shares are rounded up to thousandths, which may take a copy of as much more.
    bytes_ = sum(one.saved_bytes for one in small.options)
    slack = 2 * bytes_ / STEPS / asked.link.bytes_per_s
    assert large.seconds <= small.seconds * NEARLY + slack
    link = Link(
        bytes_per_s=2 * asked.link.bytes_per_s,
        forward_s=asked.link.forward_s,
        backward_s=asked.link.backward_s,
    )
    [fast] = fit_away([Leaving(group=asked.group, link=link)], room)
    assert fast.seconds <= small.seconds * NEARLY


def test_a_part_of_a_stage_hides_its_part() -> None:
    whole = Link(bytes_per_s=2.0, forward_s=10.0, backward_s=20.0)
    half = whole.shared(0.5)
    assert half.waits_s(30.0, 0.0) == pytest.approx(15.0 - 5.0 + 15.0 - 10.0)
    assert whole.waits_s(20.0, 0.0) == 0.0
    assert whole.waits_s(50.0, 4.0) == pytest.approx(15.0 + 1.0)
