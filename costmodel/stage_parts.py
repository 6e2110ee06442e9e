"""What stages hold, side by side: how many of which atoms, as columns over stages."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import TypeVar

import numpy as np

from costmodel.atoms import Atom
from costmodel.contents import Part

K = TypeVar("K", bound=Hashable)
Held = tuple[tuple[int, K], ...]  # how many of what, of one stage


def held(counts: Mapping[K, int]) -> Held[K]:
    """Counts as a tuple, in their order."""
    return tuple((count, part) for part, count in counts.items())


def at(several: Sequence[Held[K]], place: int) -> Held[K]:
    """The one at *place*, or nothing where there are fewer."""
    return several[place] if place < len(several) else ()


def side_by_side(
    stages: Sequence[Held[K]], table: Atom, rows: Mapping[K, int]
) -> list[Part]:
    """The first part of each stage, the second …; 0 of nothing where it has fewer.

    *rows* says where in *table* each part's atom is; row 0 is none.
    """
    most = max(len(parts) for parts in stages)
    counts = np.zeros((most, len(stages)), dtype=np.int64)
    index = np.zeros_like(counts)
    for column, parts in enumerate(stages):
        for place, (count, part) in enumerate(parts):
            counts[place, column] = count
            index[place, column] = rows[part]
    return [(one, table.take(row)) for one, row in zip(counts, index, strict=True)]
