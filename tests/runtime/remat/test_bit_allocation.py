"""`runtime.remat.bit_allocation`: the exact knapsack, against all allocations."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runtime.remat.bit_allocation import CHOICES, allocated, sensitivity, variance
from tests.support.rows import Obtained

tensors = st.tuples(st.integers(1, 50), st.floats(0, 100))


def cost(bits: dict[int, int], worth: dict[int, float]) -> float:
    return sum(worth[key] * variance(one) for key, one in bits.items())


@settings(max_examples=60)
@given(st.lists(tensors, min_size=1, max_size=6), st.floats(1, 8))
def test_it_is_the_best_of_all(some: list[tuple[int, float]], mean: float) -> None:
    sizes = {key: size for key, (size, _) in enumerate(some)}
    worth = {key: one for key, (_, one) in enumerate(some)}
    total = mean * sum(sizes.values())
    found = allocated(sizes, worth, total)
    assert sum(sizes[key] * bits for key, bits in found.items()) <= total
    best = min(
        cost(dict(enumerate(bits)), worth)
        for bits in product(CHOICES, repeat=len(some))
        if sum(size * one for size, one in zip(sizes.values(), bits, strict=True))
        <= total
    )
    assert cost(found, worth) == pytest.approx(best)


@pytest.mark.row(
    "G7",
    "cost of the bits of 12 tensors over the best of all 4^12",
    expected="1",
    evidence="computed",
)
def test_it_is_the_best_of_all_of_twelve_tensors(obtained: Obtained) -> None:
    """4¹² allocations, in halves: six tensors' with six others'."""
    random = np.random.default_rng(3)
    sizes = {key: int(size) for key, size in enumerate(random.integers(1, 1000, 12))}
    worth = {key: float(one) for key, one in enumerate(random.exponential(size=12))}
    total = 2.5 * sum(sizes.values())
    bits = np.array(list(product(CHOICES, repeat=6)))
    halves = []
    for keys in (range(6), range(6, 12)):
        n = np.array([sizes[key] for key in keys])
        c = np.array([worth[key] for key in keys])
        halves.append((bits @ n, ((2.0**bits - 1) ** -2) @ c))
    (one, own), (two, other) = halves
    fits = one[:, None] + two[None, :] <= total
    best = np.where(fits, own[:, None] + other[None, :], np.inf).min()
    obtained(f"{cost(allocated(sizes, worth, total), worth) / best:g}")
    assert cost(allocated(sizes, worth, total), worth) == pytest.approx(best)


def test_one_bit_each_where_nothing_fits() -> None:
    assert allocated({"a": 4, "b": 2}, {"a": 1.0, "b": 9.0}, 1) == {"a": 1, "b": 1}


def test_the_shipped_estimator() -> None:
    assert sensitivity(3.0, 1.0, 1.2) == 3.0
    assert sensitivity(1.0, 1.0, 1.2) == 2.4
