"""`Frontier`: candidates in the order of their lower bounds, as few priced as can be.

Branches lie sorted by their floor. Only when the least floor is below the least bound
of the leaves at hand is the next batch of branches opened: what cannot fit is dropped,
the rest spelled out as leaves and priced. So `least` bounds every candidate that has
not been taken, at any time.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import inf

import numpy as np

from costmodel.columns import Columns
from costmodel.uniform import Uniform
from planner.floors import floor_bytes, floor_s, leaf_bounds
from planner.problem import Objective, Problem
from planner.space import Space
from planner.table import Array, Table, length, take

FIRST_BATCH, LARGEST_BATCH = 128, 8192  # branches opened at a time, doubling


@dataclass(frozen=True, slots=True, kw_only=True)
class TooBig:
    """A candidate that does not fit, and what columns say of it."""

    choice: Uniform
    step_time_s: float
    peak_memory_bytes: float


@dataclass(kw_only=True)
class Frontier:
    """The candidates of *space* that have not been taken yet."""

    space: Space
    considered: int = 0
    dropped_for_memory: int = 0
    fastest_too_big: TooBig | None = None
    lower_step_time_s: float = inf
    _branches: Table = field(default_factory=dict)
    _floors: Array = field(default_factory=lambda: np.empty(0))
    _opened: int = 0
    _batch: int = FIRST_BATCH
    _leaves: Columns | None = None
    _bounds: Array = field(default_factory=lambda: np.empty(0))
    _taken: int = 0

    @classmethod
    def of(cls, problem: Problem) -> Frontier:
        """All of a problem's candidates."""
        space = Space(problem=problem)
        branches = space.branches
        if not length(branches):
            return cls(space=space)
        seconds = floor_s(problem, branches)
        floors = seconds
        if problem.objective is Objective.MEMORY:
            floors = floor_bytes(space, branches)
        floors = np.asarray(problem.value_of(floors, floors))
        order = np.argsort(floors, kind="stable")
        return cls(
            space=space,
            considered=int(branches["leaves"].sum()),
            lower_step_time_s=float(seconds.min()),
            _branches=take(branches, order),
            _floors=floors[order],
        )

    @property
    def problem(self) -> Problem:
        return self.space.problem

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
        return self.space.choice(self._leaves, self._taken - 1)

    @property
    def _next_leaf(self) -> float:
        left = self._taken < len(self._bounds)
        return float(self._bounds[self._taken]) if left else inf

    @property
    def _next_floor(self) -> float:
        left = self._opened < len(self._floors)
        return float(self._floors[self._opened]) if left else inf

    def _open(self) -> None:
        """Open the next batch of branches."""
        end = self._opened + self._batch
        batch = take(self._branches, np.arange(self._opened, min(end, len(self._floors))))
        self._opened = end
        self._batch = min(2 * self._batch, LARGEST_BATCH)
        fitting = floor_bytes(self.space, batch) <= self.problem.memory_limit_bytes
        self._drop_branches(take(batch, ~fitting))
        if fitting.any():
            self._add(self.space.leaves(take(batch, fitting)))

    def _add(self, leaves: Columns) -> None:
        """Price leaves and put those that may fit among the ones at hand."""
        prices = leaf_bounds(self.problem, leaves)
        fitting = prices.peak_memory_bytes <= self.problem.memory_limit_bytes
        self._note_too_big(leaves, ~fitting, prices)
        bounds = self.problem.value_of(prices.step_time_s, prices.peak_memory_bytes)
        bounds, leaves = bounds[fitting], leaves.take(fitting)
        tie = prices.peak_memory_bytes[fitting]
        if self._leaves is not None:
            left = np.arange(self._taken, len(self._bounds))
            ...
