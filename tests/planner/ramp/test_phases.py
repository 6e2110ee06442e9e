"""Phases of a ramp against every assignment of layouts to batches."""

from __future__ import annotations

from itertools import pairwise, product
from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.ramp.choice import between
from planner.ramp.phases import phases

times = st.sampled_from([1.0, 1.5, 2.0, 3.0, 7.0, inf])


@given(
    steps=st.lists(st.integers(0, 50), min_size=1, max_size=5),
    rows=st.lists(st.lists(times, min_size=5, max_size=5), min_size=1, max_size=3),
    replan_s=st.sampled_from([0.0, 5.0, 40.0]),
)
def test_no_assignment_is_better(
    steps: list[int], rows: list[list[float]], replan_s: float
) -> None:
    counts = {8 * (number + 1): count for number, count in enumerate(steps)}
    times_s = [
        {batch: row[place] for place, batch in enumerate(counts) if row[place] < inf}
        for row in rows
    ]
    best_s = inf
    for taken in product(range(len(rows)), repeat=len(steps)):
        pairs = list(zip(counts, taken, strict=True))
        if any(b not in times_s[one] for b, one in pairs):
            continue
        trained_s = sum(counts[b] * times_s[one][b] for b, one in pairs)
        changes = sum(a != b for a, b in pairwise(taken))
        best_s = min(best_s, trained_s + replan_s * changes)
    found = phases(counts, times_s, replan_s)
    if found is None:
        assert not best_s < inf
        return
    seconds = sum(one.seconds for one in found) + replan_s * (len(found) - 1)
    assert seconds == pytest.approx(best_s)
    assert [b for one in found for b in one.batches] == list(counts)
    assert all(a.layout != b.layout for a, b in pairwise(found))


def test_few_batches_are_planned_for() -> None:
    assert between([]) == []
    assert between([8]) == [8]
    assert between(list(range(8, 64, 8))) == [8, 16, 32]
