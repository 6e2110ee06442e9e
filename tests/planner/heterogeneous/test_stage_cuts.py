"""Cuts moved by a layer: what neighbours are, and where a climb ends."""

from __future__ import annotations

from itertools import pairwise
from math import inf
from types import SimpleNamespace
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from planner.heterogeneous.partition import Part, Partition
from planner.heterogeneous.search import climbed, moved, packed


def partition(sizes: tuple[int, ...]) -> Partition:
    ends = [sum(sizes[: place + 1]) for place in range(len(sizes))]
    parts = tuple(
        Part(first=end - size, last=end - 1, option=place)
        for place, (size, end) in enumerate(zip(sizes, ends, strict=True))
    )
    return Partition(parts=parts, seconds=1.0)


def sizes_of(one: Partition) -> tuple[int, ...]:
    return tuple(part.last - part.first + 1 for part in one.parts)


sizes = st.lists(st.integers(1, 5), min_size=1, max_size=5).map(tuple)


@given(sizes=sizes)
def test_a_neighbour_has_one_layer_elsewhere(sizes: tuple[int, ...]) -> None:
    found = [sizes_of(one) for one in moved(partition(sizes))]
    assert len(set(found)) == len(found)
    for one in found:
        assert min(one) >= 1
        assert sum(one) == sum(sizes)
        changed = [b - a for a, b in zip(sizes, one, strict=True) if a != b]
        assert sorted(changed) == [-1, 1]
    near = [
        (a, b) for apart in (1, 2) for a, b in zip(sizes, sizes[apart:], strict=False)
    ]
    assert len(found) == sum((a > 1) + (b > 1) for a, b in near)


@given(sizes=sizes, wanted=st.data())
def test_a_climb_ends_where_no_neighbour_is_better(
    sizes: tuple[int, ...], wanted: st.DataObject
) -> None:
    """With a value that falls towards a partition, there; each step better."""
    total, count = sum(sizes), len(sizes)
    cuts = sorted(
        wanted.draw(
            st.sets(st.integers(1, total - 1), min_size=count - 1, max_size=count - 1)
        )
        if count > 1
        else set()
    )

    def apart(one: Partition) -> float:
        here = [part.last + 1 for part in one.parts[:-1]]
        return float(sum(abs(a - b) for a, b in zip(here, cuts, strict=True)))

    start = partition(sizes)
    steps = list(climbed(start, apart(start), apart))
    values = [apart(one) for one in (start, *steps)]
    assert all(after < before for before, after in pairwise(values))
    assert values[-1] == 0


@given(sizes=sizes, seconds=st.data())
def test_packed_stages_are_no_slower(
    sizes: tuple[int, ...], seconds: st.DataObject
) -> None:
    """As many layers at one end as the slowest stage has time for, and no fewer
    stages."""
    layers, start = sum(sizes), partition(sizes)
    each = st.lists(st.integers(1, 9), min_size=layers, max_size=layers)
    own_s = [np.array(seconds.draw(each), dtype=float) for _ in sizes]
    options: Any = [SimpleNamespace(seconds=one) for one in own_s]

    def taken_s(one: Partition) -> list[float]:
        return [
            float(own_s[place][part.first : part.last + 1].sum())
            for place, part in enumerate(one.parts)
        ]

    found = list(packed(start, options))
    for one in found:
        assert min(sizes_of(one)) >= 1
        assert sum(sizes_of(one)) == layers
        assert [part.option for part in one.parts] == list(range(len(sizes)))
        assert max(taken_s(one)) <= max(taken_s(start))


def test_packed_stages_are_at_an_end() -> None:
    alike: Any = [SimpleNamespace(seconds=np.ones(8))] * 4
    found = [sizes_of(one) for one in packed(partition((2, 3, 1, 2)), alike)]
    assert found == [(3, 3, 1, 1), (1, 1, 3, 3)]


def test_what_is_not_to_be_had_is_not_taken() -> None:
    start = partition((2, 2))
    assert list(climbed(start, 5.0, lambda _: inf)) == []
