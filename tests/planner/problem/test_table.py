"""Rows widened by options, against the plain loop."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from planner.problem.table import counts, divisors, length, take, widen

rows = st.lists(st.tuples(st.integers(1, 30), st.integers(1, 5)), max_size=20)


@given(st.integers(1, 5000))
def test_divisors_are_all_that_divide(number: int) -> None:
    assert list(divisors(number)) == [
        one for one in range(1, number + 1) if number % one == 0
    ]


@given(rows)
def test_widening_is_a_loop_over_rows_and_options(pairs: list[tuple[int, int]]) -> None:
    def options(dp: int, cp: int) -> list[tuple[int, int]]:
        return [(part, dp * cp) for part in divisors(dp) if part % cp == 0]

    dp, cp = np.array(pairs, int).reshape(-1, 2).T
    table = {"dp": dp, "cp": cp, "row": np.arange(len(pairs))}
    wide = widen(table, ["part", "product"], ["dp", "cp"], options)
    expected = [
        (one, two, row, *option)
        for row, (one, two) in enumerate(pairs)
        for option in options(one, two)
    ]
    found = list(zip(*(column.tolist() for column in wide.values()), strict=True))
    assert list(wide) == ["dp", "cp", "row", "part", "product"]
    assert found == expected
    sizes = counts(table, ["dp", "cp"], options)
    assert sizes.tolist() == [len(options(*pair)) for pair in pairs]


def test_taking_rows_by_mask_and_by_index() -> None:
    table = {"a": np.array([5, 6, 7])}
    assert length(take(table, np.array([True, False, True]))) == 2
    assert take(table, np.array([2, 0]))["a"].tolist() == [7, 5]
