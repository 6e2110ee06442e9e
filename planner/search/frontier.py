"""`Frontier`: candidates in the order of their lower bounds, as few priced as can be.

Branches wait in the order of their floors (`branch_queue`). Only where the least floor
is below the least bound of the leaves at hand is the next batch of branches opened, of
those below that bound: what cannot fit is dropped, the rest is spelled out as leaves,
and of those that may fit the seconds are priced. So `least` bounds every candidate that
has not been taken, at any time; once time is over, no more are opened.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import inf

import numpy as np

from costmodel.layout import Columns, Uniform
from planner.problem import Objective, Problem, Space, Table, length, take
from planner.search.bounds import floor_bytes, floor_s, leaf_bytes, leaf_s, rough_s
from planner.search.branch_queue import BranchQueue
from planner.search.search import Clock, Limits
from planner.search.timeline_bounds import TimelineBounds
from profiles.arrays import Array
from profiles.errors import OutOfTime

SPLIT = ("tp", "pp", "ep", "etp")  # of the model over ranks
FIRST_BATCH, GROWTH, LARGEST_BATCH = 256, 4, 8192  # branches opened at a time
AHEAD = 1.005  # what is as near as that is opened together: batches of a few cost more
LEVELS = range(4)  # of ZeRO
TIMED = 1024  # leaves that are bounded by timelines at a time
FIRST_LOST = 256  # of what does not fit, priced at a time


@dataclass(frozen=True, slots=True, kw_only=True)
class Leaves:
    """Candidates with what their simulation does not go below."""

    columns: Columns
    seconds: Array
    peak_bytes: Array
    bounds: Array  # of the objective's value
    closer: Array  # whether timelines were asked, too

    def __len__(self) -> int:
        return len(self.bounds)

    def take(self, index: Array) -> Leaves:
        return Leaves(
            columns=self.columns.take(index),
            seconds=self.seconds[index],
            peak_bytes=self.peak_bytes[index],
            bounds=self.bounds[index],
            closer=self.closer[index],
        )

    def in_order(self) -> Leaves:
        """By their bounds; of equal ones those first that need less memory."""
        return self.take(np.lexsort((self.seconds, self.peak_bytes, self.bounds)))

    def beside(self, others: Leaves) -> Leaves:
        return Leaves(
            columns=Columns.concatenate([self.columns, others.columns]),
            seconds=np.concatenate([self.seconds, others.seconds]),
            peak_bytes=np.concatenate([self.peak_bytes, others.peak_bytes]),
            bounds=np.concatenate([self.bounds, others.bounds]),
            closer=np.concatenate([self.closer, others.closer]),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Lost:
    """Candidates that need too much memory: their peaks, and their branches' floors."""

    columns: Columns
    peak_bytes: Array
    floors_s: Array


class Frontier:
    """The candidates of a problem that have not been taken yet.

    Raises OutOfTime where the time of *clock* ends before they lie in order.
    """

    def __init__(self, problem: Problem, clock: Clock | None = None) -> None:
        self.problem = problem
        self.clock = clock or Clock(limits=Limits())
        self.space = Space.of(problem)
        self.considered = int(self.space.trunks["leaves"].sum())
        self.clock.require(self.considered)
        self.dropped_for_memory = 0
        self._lost: list[Lost] = []
        self._by_bytes = problem.objective is Objective.MEMORY
        self._unit = float(problem.value_of(1.0, 1.0))  # of a second, or of a byte
        self._queue = self._of_bytes() if self._by_bytes else self._of_seconds()
        self._first_floor = self._queue.least
        self.opened, self._batch = 0, FIRST_BATCH
        self._dropped = inf  # the least floor of what time did not suffice to open
        self._leaves: Leaves | None = None
        self._taken = 0
        self._timelines = TimelineBounds(problem)
        self._looks_closer = self._timelines.are_tighter and not self._by_bytes

    @property
    def least(self) -> float:
        """No candidate left has a smaller value; infinite if none is left."""
        return min(self._next_leaf, self._queue.least, self._dropped)

    @property
    def lower_step_time_s(self) -> float:
        """No candidate of the problem has a shorter step; 0 where time was over before
        that was known."""
        if not self._by_bytes:
            return self._first_floor / self._unit
        try:
            self.clock.require(self.considered)
            return self._of_seconds().least / self._unit
        except OutOfTime:
            return 0.0

    def take(self) -> Uniform | None:
        """The candidate with the least bound, None if none is left, or no time."""
        while not self.clock.over:
            if self._queue.least < self._next_leaf:
                self._open(below=AHEAD * self._next_leaf)
            elif not self._closer():
                break
        if self.clock.over or self._leaves is None or self._next_leaf == inf:
            return None
        self._taken += 1
        return self.space.choice(self._leaves.columns, self._taken - 1)

    def open_all(self) -> None:
        """Price every candidate left, in few large batches: for small spaces."""
        while self._queue.least < inf and not self.clock.over:
            self._open(below=inf)

    def close(
        self, choice: Uniform, family: Sequence[str]
    ) -> list[tuple[Uniform, float]]:
        """Drop what is left that splits the model as *choice* does; of leaves at hand
        the nearest of each *family* of equal columns, with bounds. From then on `least`
        no longer speaks of these candidates."""
        self._queue.close(_alike(self.space.trunks, choice))
        if self._leaves is None:
            return []
        left = {name: getattr(self._leaves.columns, name) for name in SPLIT}
        alike = _alike(left, choice)
        alike[: self._taken] = False
        rows = np.flatnonzero(alike)
        columns = [getattr(self._leaves.columns, name)[rows] for name in family]
        _, first = np.unique(np.array(columns), axis=1, return_index=True)
        nearest = [
            (
                self.space.choice(self._leaves.columns, int(row)),
                float(self._leaves.bounds[row]),
            )
            for row in rows[np.sort(first)]
        ]
        self._leaves = self._leaves.take(~alike)
        return nearest

    def too_big(self, seconds: float) -> Uniform | None:
        """Of what was dropped for its memory and may be faster than *seconds*, the
        candidate that needs least."""
        lost = [one for one in self._lost if len(one.columns)]
        if not lost:
            return None
        columns = Columns.concatenate(one.columns for one in lost)
        peaks = np.concatenate([one.peak_bytes for one in lost])
        floors_s = np.concatenate([one.floors_s for one in lost])
        order = np.argsort(peaks, kind="stable")
        order = order[(floors_s[order] < seconds) & (peaks[order] < inf)]
        start, size = 0, FIRST_LOST
        while start < len(order) and not self.clock.over:
            rows = order[start : start + size]
            here = columns.take(rows)
            faster = np.flatnonzero(leaf_s(self.problem, here) < seconds)
            if len(faster):
                return self.space.choice(here, int(faster[0]))
            start, size = start + size, min(GROWTH * size, LARGEST_BATCH)
        return None

    @property
    def closer(self) -> Callable[[Sequence[Uniform]], Array] | None:
        """Bounds of candidates by timelines, where those are tighter."""
        return self._closer_bounds if self._looks_closer else None

    def _closer_bounds(self, some: Sequence[Uniform]) -> Array:
        if not some:
            return np.empty(0)
        columns = Columns.of(some)
        seconds = self._timelines.seconds(columns, self._late)
        return np.asarray(self.problem.value_of(seconds, 0.0))

    def _of_seconds(self) -> BranchQueue:
        """All branches by the floors of what their seconds are worth."""
        problem, trunks, unit = self.problem, self.space.trunks, self._unit

        def floors(some: Table) -> Array:
            return np.asarray(unit * floor_s(problem, some))

        def pause() -> None:
            self.clock.require(self.considered)

        rough = unit * rough_s(problem, trunks, between=pause)
        return BranchQueue(trunks, rough, floors, self._late, self.space.opened)

    def _of_bytes(self) -> BranchQueue:
        """All branches by the floors of their bytes, of which no glance tells."""

        def floors(some: Table) -> Array:
            columns, branch = self.space.leanest(some)
            return floor_bytes(leaf_bytes(self.problem, columns), branch)

        trunks = self.space.trunks
        rough = np.zeros(length(trunks))
        return BranchQueue(trunks, rough, floors, self._late, self.space.opened)

    def _late(self) -> bool:
        return self.clock.over

    @property
    def _next_leaf(self) -> float:
        if self._leaves is None or self._taken == len(self._leaves):
            return inf
        return float(self._leaves.bounds[self._taken])

    def _open(self, below: float) -> None:
        """Open the next batch of the branches whose floors are *below* a value."""
        batch, floors = self._queue.take(self._batch, below=below)
        self.opened += length(batch)
        self._batch = min(GROWTH * self._batch, LARGEST_BATCH)
        columns, branch = self.space.leanest(batch)
        peaks = leaf_bytes(self.problem, columns)
        if self.clock.over:
            self._dropped = min(self._dropped, floors.min(initial=inf))
            return
        floors_s, fits = self._seconds_of(floors), self._fit(peaks)
        self._lose(columns, peaks, floors_s[branch], ~fits)
        levels = np.zeros((len(floors), len(LEVELS)), dtype=bool)
        levels[branch, columns.zero] = fits
        fitting: Array = np.asarray(levels.any(axis=1))
        self.dropped_for_memory += int(batch["leaves"][~fitting].sum())
        if fitting.any():
            some = take(batch, fitting)
            self._add(self.space.leaves(some), some, floors_s[fitting], levels[fitting])

    def _closer(self) -> bool:
        """Raise the bounds of the next leaves to those of timelines, unless that of the
        very next is done; whether it was not."""
        leaves, first = self._leaves, self._taken
        if leaves is None or self._next_leaf == inf or not self._looks_closer:
            return False
        if leaves.closer[first]:
            return False
        rows = first + np.flatnonzero(~leaves.closer[first : first + TIMED])
        columns = leaves.columns.take(rows)
        seconds = leaves.seconds.copy()
        seconds[rows] = np.maximum(
            seconds[rows], self._timelines.seconds(columns, self._late)
        )
        left = np.arange(first, len(leaves))
        closer = leaves.closer.copy()
        closer[rows] = True
        found = replace(leaves, seconds=seconds, closer=closer).take(left)
        values = self.problem.value_of(found.seconds, found.peak_bytes)
        self._leaves, self._taken = replace(found, bounds=values).in_order(), 0
        return True

    def _fit(self, peaks: Array) -> Array:
        return np.asarray(peaks <= self.problem.memory_limit_bytes)

    def _seconds_of(self, floors: Array) -> Array:
        """Of floors of the value those of the step; nothing is known of memory's."""
        return np.zeros_like(floors) if self._by_bytes else floors / self._unit

    def _lose(
        self, columns: Columns, peaks: Array, floors_s: Array, lost: Array
    ) -> None:
        self._lost.append(
            Lost(
                columns=columns.take(lost),
                peak_bytes=peaks[lost],
                floors_s=floors_s[lost],
            )
        )

    def _add(
        self, columns: Columns, branches: Table, floors_s: Array, levels: Array
    ) -> None:
        """Keep those leaves of *branches* that may fit, with their prices: of each the
        *levels* of ZeRO whose leanest does."""
        owner = np.repeat(np.arange(len(floors_s)), branches["leaves"])
        rows = np.flatnonzero(levels[owner, columns.zero])
        self.dropped_for_memory += len(columns) - len(rows)
        columns, owner = columns.take(rows), owner[rows]
        peaks = leaf_bytes(self.problem, columns)
        fits = self._fit(peaks)
        self.dropped_for_memory += int((~fits).sum())
        self._lose(columns, peaks, floors_s[owner], ~fits)
        if not fits.any():
            return
        found = self._priced(columns.take(fits), peaks[fits])
        if self._leaves is not None:
            left = np.arange(self._taken, len(self._leaves))
            found = self._leaves.take(left).beside(found)
        self._leaves, self._taken = found.in_order(), 0

    def _priced(self, columns: Columns, peak_bytes: Array) -> Leaves:
        seconds = leaf_s(self.problem, columns)
        bounds = np.asarray(self.problem.value_of(seconds, peak_bytes))
        return Leaves(
            columns=columns,
            seconds=seconds,
            peak_bytes=peak_bytes,
            bounds=bounds,
            closer=np.zeros(len(columns), dtype=bool),
        )


def _alike(table: Table, choice: Uniform) -> Array:
    """Which rows split the model as *choice* does."""
    same = np.ones(length(table), dtype=bool)
    for name in SPLIT:
        same &= table[name] == getattr(choice, name)
    return same
