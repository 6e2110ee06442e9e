"""Halving finds the least of a falling sum and a rising price."""

from __future__ import annotations

from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.heterogeneous.partition import Reached, halve

POINTS = st.lists(
    st.tuples(st.floats(1, 100), st.floats(1, 100)), min_size=1, max_size=12
)


def at_most(points: list[tuple[float, float]], most: float) -> Reached:
    """The least sum of the points whose threshold is not above *most*."""
    return min((one for one in points if one[1] <= most), default=(inf, inf))


@given(POINTS, st.integers(0, 50), st.sampled_from([0.0, 0.1]))
def test_nothing_is_less_by_more_than_the_tolerance(
    points: list[tuple[float, float]], weight: int, tolerance: float
) -> None:
    best = min(least + weight * needs for least, needs in points)
    found = halve(
        lambda most: at_most(points, most),
        low=0.5,
        weight=weight,
        tolerance=tolerance,
        below=inf,
    )
    assert best * (1 - 1e-7) <= found <= best * (1 + tolerance) * (1 + 1e-7)


def test_few_are_asked_for() -> None:
    """A thousand thresholds, of which one is best: some dozen sums."""
    points = [(1000.0 / number, float(number)) for number in range(1, 1001)]
    asked: list[float] = []

    def sum_at(most: float) -> Reached:
        asked.append(most)
        return at_most(points, most)

    found = halve(sum_at, low=1.0, weight=10, tolerance=0.01, below=inf)
    assert found == pytest.approx(200, rel=0.01)
    assert len(asked) < 40


def test_what_is_not_below_is_not_found() -> None:
    found = halve(lambda _: (5.0, 2.0), low=1.0, weight=1, tolerance=0.0, below=6.0)
    assert found == 6.0
    none = halve(lambda _: (inf, inf), low=1.0, weight=1, tolerance=0.0, below=inf)
    assert none == inf
