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
from costmodel.grid import ColumnPrices
from costmodel.uniform import Uniform
from planner.floors import floor_bytes, floor_s, leaf_bounds
from planner.problem import Objective, Problem
from planner.space import Space
from planner.table import Array, Table, length, take

FIRST_BATCH, LARGEST_BATCH = 128, 8192  # branches opened at a time, doubling


@dataclass(frozen=True, slots=True, kw_only=True)
class Leaves:
    """Priced candidates, the least bound first; of equal ones the smallest first."""

    columns: Columns
    bounds: Array
    peak_bytes: Array

    def take(self, index: Array) -> Leaves:
        return Leaves(
            columns=self.columns.take(index),
            bounds=self.bounds[index],
            peak_bytes=self.peak_bytes[index],
        )

    def merged(self, others: Leaves) -> Leaves:
        together = Leaves(
            columns=Columns.concatenate([self.columns, others.columns]),
            bounds=np.concatenate([self.bounds, others.bounds]),
            peak_bytes=np.concatenate([self.peak_bytes, others.peak_bytes]),
        )
        return together.take(np.lexsort((together.peak_bytes, together.bounds)))


class Frontier:
    """The candidates of a problem that have not been taken yet."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.space = Space(problem=problem)
        branches = self.space.branches
        self.considered = int(branches["leaves"].sum())
        self.dropped_for_memory = 0
        self.fastest_too_big: tuple[float, Uniform] | None = None
        self.lower_step_time_s = inf
        self._branches, self._floors_s, self._floors = self._sorted(branches)
        self._opened, self._batch = 0, FIRST_BATCH
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

    def _sorted(self, branches: Table) -> tuple[Table, Array, Array]:
        """Branches, the floors of their seconds and of their values, least first."""
        if not length(branches):
            return branches, np.empty(0), np.empty(0)
        seconds = floor_s(self.problem, branches)
        self.lower_step_time_s = float(seconds.min())
        peaks = seconds
        if self.problem.objective is Objective.MEMORY:
            peaks = floor_bytes(self.space, branches)
        floors = np.asarray(self.problem.value_of(seconds, peaks))
        order = np.argsort(floors, kind="stable")
        return take(branches, order), seconds[order], floors[order]

    @property
    def _next_leaf(self) -> float:
        if self._leaves is None or self._taken == len(self._leaves.bounds):
            return inf
        return float(self._leaves.bounds[self._taken])

    @property
    def _next_floor(self) -> float:
        left = self._opened < len(self._floors)
        return float(self._floors[self._opened]) if left else inf

    def _open(self) -> None:
        """Open the next batch of branches."""
        end = min(self._opened + self._batch, len(self._floors))
        rows = np.arange(self._opened, end)
        self._opened, self._batch = end, min(2 * self._batch, LARGEST_BATCH)
        batch = take(self._branches, rows)
        too_big = floor_bytes(self.space, batch) > self.problem.memory_limit_bytes
        if too_big.any():
            lost = take(batch, too_big)
            self.dropped_for_memory += int(lost["leaves"].sum())
            seconds = self._floors_s[rows[too_big]]
            columns, branch = self.space.leanest(lost)
            row = int(np.argmax(branch == seconds.argmin()))
            self._note_too_big(float(seconds.min()), columns, row)
        if not too_big.all():
            self._add(self.space.leaves(take(batch, ~too_big)))

    def _add(self, columns: Columns) -> None:
        """Price leaves and keep those that may fit."""
        prices = leaf_bounds(self.problem, columns)
        fitting = prices.peak_memory_bytes <= self.problem.memory_limit_bytes
        self.dropped_for_memory += int((~fitting).sum())
        if not fitting.all():
            seconds = np.where(fitting, inf, prices.step_time_s)
            row = int(seconds.argmin())
            self._note_too_big(float(seconds[row]), columns, row)
        found = self._priced(columns, prices).take(fitting)
        if self._leaves is not None:
            left = np.arange(self._taken, len(self._leaves.bounds))
            found = self._leaves.take(left).merged(found)
        else:
            found = found.take(np.lexsort((found.peak_bytes, found.bounds)))
        self._leaves, self._taken = found, 0

    def _priced(self, columns: Columns, prices: ColumnPrices) -> Leaves:
        seconds, peaks = prices.step_time_s, prices.peak_memory_bytes
        bounds = np.asarray(self.problem.value_of(seconds, peaks))
        return Leaves(columns=columns, bounds=bounds, peak_bytes=peaks)

    def _note_too_big(self, seconds: float, columns: Columns, row: int) -> None:
        if self.fastest_too_big is None or seconds < self.fastest_too_big[0]:
            self.fastest_too_big = (seconds, self.space.choice(columns, row))
