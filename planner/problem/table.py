"""`Table`: rows of integers by column name, and the product that widens one.

A column of options depends on few others (ZeRO groups on dp and cp alone), so options
are listed once for each distinct key, and rows gather them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from math import isqrt

import numpy as np

from profiles.arrays import Array

Table = dict[str, Array]
Option = tuple[int, ...]
LARGEST_NARROW = np.iinfo(np.int32).max  # tables are millions of rows: half the bytes


@lru_cache(maxsize=4096)
def divisors(number: int) -> tuple[int, ...]:
    """All divisors, smallest first.

    >>> divisors(12)
    (1, 2, 3, 4, 6, 12)
    """
    small = [one for one in range(1, isqrt(number) + 1) if number % one == 0]
    return tuple(sorted({*small, *(number // one for one in small)}))


def length(table: Table) -> int:
    """Rows of a table."""
    return len(next(iter(table.values())))


def take(table: Table, index: Array) -> Table:
    """The rows at *index*, or where a mask is true: no copies where all of it is."""
    if index.dtype == bool and index.all():
        return dict(table)
    return {name: column[index] for name, column in table.items()}


def widen(
    table: Table,
    names: Sequence[str],
    keys: Sequence[str],
    options: Callable[..., Sequence[Option]],
) -> Table:
    """Each row once for every option that ``options(*keys)`` gives it, in order.

    >>> rows = {"dp": np.array([4, 3])}
    >>> wide = widen(rows, ["part"], ["dp"], lambda dp: [(n,) for n in divisors(dp)])
    >>> wide["dp"].tolist(), wide["part"].tolist()
    ([4, 4, 4, 3, 3], [1, 2, 4, 1, 3])
    """
    first, group = _distinct(table, keys)
    listed = [options(*(int(table[key][row]) for key in keys)) for row in first]
    flat = np.array([item for each in listed for item in each], dtype=np.int64)
    if flat.max(initial=0) <= LARGEST_NARROW:
        flat = flat.astype(np.int32)
    flat = flat.reshape(-1, len(names))
    sizes = np.array([len(each) for each in listed], dtype=np.int64)
    starts = np.cumsum(sizes) - sizes
    repeats = sizes[group]
    row = np.repeat(np.arange(len(group)), repeats)
    within = np.arange(len(row)) - np.repeat(np.cumsum(repeats) - repeats, repeats)
    chosen = flat[starts[group[row]] + within]
    columns = {name: chosen[:, place] for place, name in enumerate(names)}
    return {**take(table, row), **columns}


def counts(
    table: Table, keys: Sequence[str], options: Callable[..., Sequence[Option]]
) -> Array:
    """How many rows `widen` would make of each row."""
    first, group = _distinct(table, keys)
    sizes = [len(options(*(int(table[key][row]) for key in keys))) for row in first]
    return np.array(sizes, dtype=np.int64)[group]


def _distinct(table: Table, keys: Sequence[str]) -> tuple[Array, Array]:
    """A row of each distinct key, and each row's place among them."""
    packed = np.zeros(length(table), dtype=np.int64)
    for key in keys:  # keys are small: degrees, micro-batches
        column = table[key]
        packed = packed * (int(column.max(initial=0)) + 1) + column
    _, first, group = np.unique(packed, return_index=True, return_inverse=True)
    return first, group
