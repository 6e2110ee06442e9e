"""Mixtures of two ways: none that fits costs less, and what is found does fit."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.search.mixture import least_mixture

numbers = st.floats(0.1, 100.0)
ways = st.lists(st.tuples(numbers, numbers), min_size=1, max_size=5)


@given(ways, numbers)
def test_the_least_of_all_mixtures_of_two(
    ways: list[tuple[float, float]], limit: float
) -> None:
    costs, needed = (list(side) for side in zip(*ways, strict=True))
    shares = np.linspace(0, 1, 101)
    fine = [
        (1 - share) * costs[one] + share * costs[other]
        for one in range(len(ways))
        for other in range(len(ways))
        for share in shares.tolist()
        if (1 - share) * needed[one] + share * needed[other] <= limit
    ]
    each = [np.array([one]) for one in costs]
    found = least_mixture(each, [np.array([one]) for one in needed], limit)
    assert bool(found.fits[0]) == (min(needed) <= limit)
    if found.fits[0]:
        assert float(found.of(each)[0]) <= min(fine) * (1 + 1e-9)
        asks = float(found.of([np.array([one]) for one in needed])[0])
        assert asks <= limit * (1 + 1e-9)
    else:
        assert found.of(each)[0] == np.inf


def test_each_place_has_its_own() -> None:
    costs = [np.array([1.0, 1.0, 1.0]), np.array([2.0, 2.0, 2.0])]
    needed = [np.array([4.0, 8.0, 16.0]), np.array([2.0, 4.0, 12.0])]
    found = least_mixture(costs, needed, 6.0).of(costs)
    assert found.tolist() == pytest.approx([1.0, 1.5, np.inf])
