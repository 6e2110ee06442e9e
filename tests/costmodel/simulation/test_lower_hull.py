"""The lower hull has the best point at every price of a byte, and no other."""

from __future__ import annotations

from fractions import Fraction
from itertools import pairwise

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from costmodel.simulation.remat_solver import lower_hull

NUMBERS = st.integers(0, 20)
POINTS = st.lists(st.tuples(NUMBERS, NUMBERS), min_size=1, max_size=12)


@given(points=POINTS, price=st.fractions(0, 50))
def test_the_best_point_at_any_price_is_a_corner(
    points: list[tuple[int, int]], price: Fraction
) -> None:
    corners = [points[at] for at in lower_hull(*np.array(points).T)]
    assert min(s + price * kept for s, kept in corners) == min(
        s + price * kept for s, kept in points
    )


@given(points=POINTS)
def test_from_corner_to_corner_a_byte_costs_more(points: list[tuple[int, int]]) -> None:
    corners = [points[at] for at in lower_hull(*np.array(points).T)]
    steps = [
        (after[0] - before[0]) / (before[1] - after[1])
        for before, after in pairwise(corners)
    ]
    assert all(before < after for before, after in pairwise(steps))
    assert not steps or steps[0] > 0
    assert corners[0] == min(points)
    assert corners[-1][1] == min(kept for _, kept in points)


def test_no_points_have_no_corners() -> None:
    assert lower_hull(np.zeros(0), np.zeros(0)) == []
