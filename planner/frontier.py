"""`Frontier`: candidates in the order of their lower bounds, as few priced as can be.

Branches lie sorted by their floors. Only where the least floor is below the least bound
of the leaves at hand is the next batch of branches opened: what cannot fit is dropped,
the rest is spelled out as leaves and priced. So `least` bounds every candidate that
has not been taken, at any time.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

import numpy as np

from costmodel.columns import Columns
from costmodel.uniform import Uniform
from planner.floors import floor_bytes, floor_s, leaf_bounds
from planner.problem import Objective, Problem
from planner.space import Space
from planner.table import Array, Table, length, take

DEGREES = ("tp", "pp", "dp", "cp", "ep", "etp")
FIRST_BATCH, GROWTH, LARGEST_BATCH = 256, 4, 8192  # branches opened at a time


@dataclass(frozen=True, slots=True, kw_only=True)
class Leaves:
    """Candidates with what their simulation does not go below."""

    columns: Columns
    seconds: Array
    peak_bytes: Array
    bounds: Array  # of the objective's value

    def __len__(self) -> int:
        return len(self.bounds)

    def take(self, index: Array) -> Leaves:
        return Leaves(
            columns=self.columns.take(index),
            seconds=self.seconds[index],
            peak_bytes=self.peak_bytes[index],
            bounds=self.bounds[index],
        )

    def beside(self, others: Leaves) -> Leaves:
        return Leaves(
            columns=Columns.concatenate([self.columns, others.columns]),
            seconds=np.concatenate([self.seconds, others.seconds]),
            peak_bytes=np.concatenate([self.peak_bytes, others.peak_bytes]),
            bounds=np.concatenate([self.bounds, others.bounds]),
        )


class Frontier:
    """The candidates of a problem that have not been taken yet."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.space = Space(problem=problem)
        branches = self.space.branches
        self.considered = int(branches["leaves"].sum())
        self.dropped_for_memory = 0
        self._lost: list[Leaves] = []
        self.lower_step_time_s = inf
        self._branches, self._floors_s, self._floors = self._sorted(branches)
        self.opened, self._batch = 0, FIRST_BATCH
        self._leaves: Leaves | None = None
        self._taken = 0

    @property
    def least(self) -> float:
        """No candidate left has a smaller value; infinite if none is left."""
        return min(self._next_leaf, self._next_floor)

    def take(self) -> Uniform | None:
        """The candidate with the least bound, None if none is left."""
        while self._next_floor < self._next_leaf:
            self._open()
        if self._leaves is None or self._next_leaf == inf:
            return None
        self._taken += 1
        return self.space.choice(self._leaves.columns, self._taken - 1)

    def close(self, choice: Uniform, remember: int) -> list[tuple[Uniform, float]]:
        """Drop what is left with the degrees of *choice*; the nearest of it, with
        bounds. From then on `least` no longer speaks of these candidates."""
        ours = _alike(self._branches, choice)
        ours[: self.opened] = False
        self._branches = take(self._branches, ~ours)
        self._floors, self._floors_s = self._floors[~ours], self._floors_s[~ours]
        if self._leaves is None:
            return []
        left = {name: getattr(self._leaves.columns, name) for name in DEGREES}
        alike = _alike(left, choice)
        alike[: self._taken] = False
        nearest = [
            (
                self.space.choice(self._leaves.columns, int(row)),
                self._leaves.bounds[row],
            )
            for row in np.flatnonzero(alike)[:remember]
        ]
        self._leaves = self._leaves.take(~alike)
        return nearest

    def too_big(self, seconds: float) -> Uniform | None:
        """Of what was dropped for its memory and may be faster than *seconds*, the
        candidate that needs least."""
        least, found = inf, None
        for leaves in self._lost:
            peaks = np.where(leaves.seconds < seconds, leaves.peak_bytes, inf)
            if len(peaks) and peaks.min() < least:
                least, row = float(peaks.min()), int(peaks.argmin())
                found = self.space.choice(leaves.columns, row)
        return found

    def _sorted(self, branches: Table) -> tuple[Table, Array, Array]:
        """Branches, the floors of their seconds and of their values, least first."""
        if not length(branches):
            return branches, np.empty(0), np.empty(0)
        seconds = floor_s(self.problem, branches)
        self.lower_step_time_s = float(seconds.min())
        peaks = seconds
        if self.problem.objective is Objective.MEMORY:
            columns, branch = self.space.leanest(branches)
            peaks = floor_bytes(self._priced(columns).peak_bytes, branch)
        floors = np.asarray(self.problem.value_of(seconds, peaks))
        order = np.argsort(floors, kind="stable")
        return take(branches, order), seconds[order], floors[order]

    @property
    def _next_leaf(self) -> float:
        if self._leaves is None or self._taken == len(self._leaves):
            return inf
        return float(self._leaves.bounds[self._taken])

    @property
    def _next_floor(self) -> float:
        left = self.opened < len(self._floors)
        return float(self._floors[self.opened]) if left else inf

    def _open(self) -> None:
        """Open the next batch of branches."""
        end = min(self.opened + self._batch, len(self._floors))
        batch = take(self._branches, np.arange(self.opened, end))
        self.opened, self._batch = end, min(GROWTH * self._batch, LARGEST_BATCH)
        columns, branch = self.space.leanest(batch)
        leanest = self._priced(columns)
        peaks = floor_bytes(leanest.peak_bytes, branch)
        too_big = peaks > self.problem.memory_limit_bytes
        self.dropped_for_memory += int(batch["leaves"][too_big].sum())
        self._lost.append(_smallest(leanest.take(too_big[branch])))
        if not too_big.all():
            self._add(self.space.leaves(take(batch, ~too_big)))

    def _add(self, columns: Columns) -> None:
        """Price leaves and keep those that may fit."""
        found = self._priced(columns)
        fitting = found.peak_bytes <= self.problem.memory_limit_bytes
        self.dropped_for_memory += int((~fitting).sum())
        self._lost.append(_smallest(found.take(~fitting)))
        found = found.take(fitting)
        if self._leaves is not None:
            left = np.arange(self._taken, len(self._leaves))
            found = self._leaves.take(left).beside(found)
        order = np.lexsort((found.seconds, found.peak_bytes, found.bounds))
        self._leaves, self._taken = found.take(order), 0

    def _priced(self, columns: Columns) -> Leaves:
        prices = leaf_bounds(self.problem, columns)
        seconds, peaks = prices.step_time_s, prices.peak_memory_bytes
        bounds = np.asarray(self.problem.value_of(seconds, peaks))
        return Leaves(columns=columns, seconds=seconds, peak_bytes=peaks, bounds=bounds)


def _smallest(leaves: Leaves) -> Leaves:
    """Those that need less memory than every faster one."""
    leaves = leaves.take(np.argsort(leaves.seconds, kind="stable"))
    least = np.minimum.accumulate(leaves.peak_bytes)
    return leaves.take(np.flatnonzero(np.diff(least, prepend=inf) < 0))


def _alike(table: Table, choice: Uniform) -> Array:
    """Which rows have the degrees of *choice*."""
    same = np.ones(length(table), dtype=bool)
    for name in DEGREES:
        same &= table[name] == getattr(choice, name)
    return same
