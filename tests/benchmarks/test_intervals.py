"""Intervals hold what they promise, and no less than they must."""

from __future__ import annotations

from math import comb

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.intervals import CONFIDENCE, median_interval, ratio_interval


@given(st.integers(6, 200))
def test_the_median_lies_inside_by_the_sign_test(size: int) -> None:
    """The smallest interval of order statistics that misses it rarely enough."""
    low, high = median_interval(range(size))
    assert low + high == size - 1

    def missed(fewer: int) -> float:  # so many values, or fewer, on one side of it
        return float(2 * sum(comb(size, k) for k in range(fewer + 1)) / 2**size)

    assert missed(int(low)) <= 1 - CONFIDENCE + 1e-12
    assert missed(int(low) + 1) > 1 - CONFIDENCE


def test_five_values_have_no_interval() -> None:
    with pytest.raises(ValueError, match="six have"):
        median_interval([1.0] * 5)


@given(st.lists(st.floats(0.5, 2.0), min_size=2, max_size=8, unique=True))
def test_a_ratio_turned_round_has_the_interval_turned_round(
    seconds: list[float],
) -> None:
    others = seconds[::-1]
    low, high = ratio_interval(seconds, others)
    again = ratio_interval(others, seconds)
    assert again == pytest.approx((1 / high, 1 / low))


def test_nineteen_of_twenty_intervals_hold_the_ratio() -> None:
    draw = np.random.default_rng(7)
    held = 0
    for _ in range(2000):
        noise = draw.normal(0, 0.05, size=(2, 4))
        ones, others = 1.2 * np.exp(noise[0]), np.exp(noise[1])
        low, high = ratio_interval(ones.tolist(), others.tolist())
        held += low <= 1.2 <= high
    assert held / 2000 == pytest.approx(CONFIDENCE, abs=0.015)
