"""`BranchQueue`: branches in the order of their floors, few of which are worked out.

    rough(b) ≤ floor(b)  what a branch cannot beat, at a glance and on a closer look
    heap                 branches lie sorted by the first; those whose turn comes are
                         looked at closely and wait by the second

Where the glance is good, most branches are never looked at again: that is the saving.
Once it is late nothing is looked at any more, and the glance has to do.
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf

import numpy as np

from planner.table import Array, Table, length, take

FIRST_LOOK, GROWTH, LARGEST_LOOK = 2048, 2, 65536  # branches looked at closely at once


class BranchQueue:
    """*table*'s branches; `floor` gives the floors of some of them, `late` says when
    time is over."""

    def __init__(
        self,
        table: Table,
        rough: Array,
        floor: Callable[[Table], Array],
        late: Callable[[], bool] = lambda: False,
    ) -> None:
        self.table = table
        self._rough, self._floor, self._late = rough, floor, late
        self._order = np.argsort(rough, kind="stable")
        self._looked_at, self._look = 0, FIRST_LOOK
        self._rows, self._floors = np.empty(0, dtype=np.int64), np.empty(0)
        self._closed = np.zeros(length(table), dtype=bool)

    @property
    def least(self) -> float:
        """No branch that is left has a smaller floor; infinite if none is left."""
        self._look_closely(1)
        known = float(self._floors[0]) if len(self._floors) else inf
        return min(known, self._next_rough)

    def take(self, most: int, below: float = inf) -> tuple[Table, Array]:
        """Up to *most* branches of the least floors, in order, with their floors, all
        of them *below* a floor."""
        self._look_closely(most, below)
        end = min(most, int(np.searchsorted(self._floors, below)))
        rows, floors = self._rows[:end], self._floors[:end]
        self._rows, self._floors = self._rows[end:], self._floors[end:]
        return take(self.table, rows), floors

    def close(self, rows: Array) -> None:
        """Drop the branches where *rows* is true."""
        self._closed |= rows
        left = ~self._closed[self._rows]
        self._rows, self._floors = self._rows[left], self._floors[left]

    def _look_closely(self, count: int, below: float = inf) -> None:
        """Until the *count* branches of least floor are known, or all of them that are
        *below* a floor."""
        while self._looked_at < len(self._order) and not self._late():
            next_rough = self._next_rough
            if next_rough >= below:
                return
            if len(self._floors) >= count and self._floors[count - 1] <= next_rough:
                return
            end = self._looked_at + self._look
            rows = self._order[self._looked_at : end]
            rows = rows[~self._closed[rows]]
            self._looked_at = min(end, len(self._order))
            self._look = min(GROWTH * self._look, LARGEST_LOOK)
            if len(rows):
                self._add(rows)

    @property
    def _next_rough(self) -> float:
        """The least floor, at a glance, of what was not looked at closely."""
        if self._looked_at == len(self._order):
            return inf
        return float(self._rough[self._order[self._looked_at]])

    def _add(self, rows: Array) -> None:
        floors = np.maximum(self._floor(take(self.table, rows)), self._rough[rows])
        rows = np.concatenate([self._rows, rows])
        floors = np.concatenate([self._floors, floors])
        order = np.lexsort((rows, floors))
        self._rows, self._floors = rows[order], floors[order]
