"""Cuts moved by a layer: what neighbours are, and where a climb ends."""

from __future__ import annotations

from itertools import pairwise
from math import inf

from hypothesis import given
from hypothesis import strategies as st

from planner.heterogeneous.partition import Part, Partition
from planner.heterogeneous.search import climbed, moved


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


def test_what_is_not_to_be_had_is_not_taken() -> None:
    start = partition((2, 2))
    assert list(climbed(start, 5.0, lambda _: inf)) == []
