"""`BranchQueue`: branches in the order of their floors, few of which are worked out.

    rough(t) ≤ floor(b)  what a trunk cannot beat at a glance, and each of its branches
                         on a closer look
    heap                 trunks lie sorted by the first; those whose turn comes are
                         opened, and their branches wait by the second

Where the glance is good, most branches are never looked at again: that is the saving.
Once it is late nothing is looked at any more, and the glance has to do.
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf

import numpy as np

from planner.problem import Table, length, take
from profiles.arrays import Array

FIRST_LOOK, GROWTH, LARGEST_LOOK = 256, 2, 8192  # trunks looked at closely at once
_TRUNK = "trunk"  # whose a branch is


class BranchQueue:
    """The branches of *table*'s trunks, as `opened` gives them; `floor` gives the
    floors of some, `late` says when time is over."""

    def __init__(
        self,
        table: Table,
        rough: Array,
        floor: Callable[[Table], Array],
        late: Callable[[], bool] = lambda: False,
        opened: Callable[[Table], Table] = lambda trunks: trunks,
    ) -> None:
        self.table, self._opened = table, opened
        self._rough, self._floor, self._late = rough, floor, late
        self._order = np.argsort(rough, kind="stable")
        self._looked_at, self._look = 0, FIRST_LOOK
        self._known: Table | None = None  # those that are left, by their floors
        self._floors = np.empty(0)
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
        if self._known is None:
            return take(self.table, np.empty(0, dtype=np.int64)), self._floors
        first, floors = np.arange(end), self._floors[:end]
        found = take(self._known, first)
        found.pop(_TRUNK)
        self._keep(np.arange(end, len(self._floors)))
        return found, floors

    def close(self, rows: Array) -> None:
        """Drop the branches of the trunks where *rows* is true."""
        self._closed |= rows
        if self._known is not None:
            self._keep(np.flatnonzero(~self._closed[self._known[_TRUNK]]))

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

    def _keep(self, index: Array) -> None:
        assert self._known is not None, "nothing is known yet"
        self._known, self._floors = take(self._known, index), self._floors[index]

    def _add(self, rows: Array) -> None:
        found = self._opened({**take(self.table, rows), _TRUNK: rows})
        floors = np.maximum(self._floor(found), self._rough[found[_TRUNK]])
        if self._known is not None:
            known = self._known.items()
            found = {name: np.concatenate([one, found[name]]) for name, one in known}
            floors = np.concatenate([self._floors, floors])
        order = np.lexsort((found[_TRUNK], floors))
        self._known, self._floors = take(found, order), floors[order]
