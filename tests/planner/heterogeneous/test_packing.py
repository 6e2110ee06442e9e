"""Stages are packed into whole domains."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.heterogeneous.candidate_set import starts


@st.composite
def islands(draw: st.DrawFn) -> tuple[list[int], int, int]:
    """Sizes of stages that fill an island, its domain, and its devices."""
    domain = draw(st.sampled_from([1, 2, 4, 8]))
    devices = domain * draw(st.integers(1, 4))
    sizes = [size for size in (1, 2, 4, 8) if size < domain]
    found: list[int] = []
    while (left := devices - sum(found)) > 0:
        whole = [domain * many for many in range(1, left // domain + 1)]
        found.append(draw(st.sampled_from([s for s in sizes if s <= left] + whole)))
    return found, domain, devices


@given(islands())
def test_stages_fill_their_island(island: tuple[list[int], int, int]) -> None:
    sizes, domain, devices = island
    found = starts(sizes)
    taken = [
        device
        for start, size in zip(found, sizes, strict=True)
        for device in range(start, start + size)
    ]
    assert sorted(taken) == list(range(devices))
    for start, size in zip(found, sizes, strict=True):
        assert start % min(size, domain) == 0, "each lies in one domain, or in whole"


@pytest.mark.parametrize("devices", [12, 3])
def test_larger_ones_are_first(devices: int) -> None:
    sizes = [1, 2, devices - 3] if devices > 3 else [1, 2]
    found = dict(zip(sizes, starts(sizes), strict=True))
    assert found[max(sizes)] == 0
    assert found[1] == devices - 1
