"""What a search found, with retention chosen stage by stage: never worse than without.

    candidates that do not fit keeping everything, fit making everything again, and are
    faster than the best as long as they keep everything           → the columns' price
    the most promising ones get the cheapest retention that fits   → auto_retention
    the fastest of these and of what the search found is the answer

Promising is what lies between keeping everything and making everything again, by the
share of the excess bytes that has to go (`CONVEX`). The proof of
the search stays as it is; `Added` says what was looked at beside it, and a bound of
that: keeping everything is never slower than not.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import Final

import numpy as np

from costmodel.layout import AUTO, RECOMPUTES, SQRT, Columns, Uniform
from costmodel.options import Pins
from costmodel.stages import Known
from costmodel.support import BY_NAME
from planner.problem import (
    EXACT,
    WORTHWHILE,
    Added,
    Candidate,
    Objective,
    Problem,
    Solution,
    Space,
    Table,
    length,
)
from planner.search.bounds import floor_s, leaf_bytes, leaf_s, rough_s
from planner.search.branch_queue import BranchQueue
from planner.search.offload import ways
from planner.search.search import Clock, Limits
from profiles.arrays import Array
from profiles.errors import Contradiction, OutOfTime

MOST: Final = 8  # candidates that are fitted
MISSES: Final = 4  # of them in a row that bring nothing: the next will not either
UNTRIED: Final = 0.96  # of the first guess of a schedule: at most that far too high
LISTED: Final = 64  # candidates that are looked at, the most promising ones
# What is made again for the first bytes costs next to nothing (norms, activations), for
# the last ones whole products: seconds grow as this power of the share of bytes.
# [fitted by hand] the first fitted is the best of all in four searches of five (gpt-13b
# on 8 devices at three probabilities, on 64, gpt-1t on 3072); with 1 the 4th to 7th.
CONVEX: Final = 4
WHOLE: Final = 1  # where layers are made again whole
MOST_BRANCHES: Final = 8192  # that are priced
_NONE, _FULL = RECOMPUTES.index("none"), RECOMPUTES.index("full")


def without_auto(pins: Pins) -> Pins:
    """*pins* for the search, to which `--recompute auto` leaves all presets free.

    Raises Contradiction for `auto` in just some layers.
    """
    if pins.recompute != AUTO:
        return pins
    if pins.recompute_layers is not None:
        raise Contradiction(
            "--recompute auto chooses how many layers of each stage make what again; "
            f"leave --recompute-layers {pins.recompute_layers} out"
        )
    return replace(pins, recompute=None)


def polished(problem: Problem, solution: Solution, limits: Limits) -> Solution:
    """*solution*, or one that is better by choosing retention stage by stage.

    Where the recompute is pinned, or memory itself is the objective, nothing is tried;
    nor where time is over before it is known what is promising. For a framework that
    treats all layers alike there is nothing to choose.
    """
    pins = problem.pins
    if solution.best is None or problem.objective is Objective.MEMORY:
        return solution
    if pins.recompute is not None or pins.recompute_layers is not None:
        return solution
    if not problem.recomputes_in_part:
        return solution
    clock = Clock(limits=limits)
    try:
        fields = [
            _Field(one, solution.value, clock, tight=solution.added is not None)
            for one in _free(problem)
        ]
    except OutOfTime:
        return solution
    left = [one for field in fields for one in field.promising()]
    best, simulated, misses, known = solution.best, 0, 0, Known()
    off: dict[str, float] = {}  # by schedule, how far its last guess was

    def likely(one: _Promise) -> float:
        return one.guess * off.get(one.choice.schedule, UNTRIED)

    while left and not clock.over and simulated < MOST and misses < MISSES:
        one = min(left, key=likely)
        left.remove(one)
        if one.least >= problem.value(best) * (1 - EXACT):
            continue
        found = one.problem.simulate(one.choice, known)
        simulated, misses = simulated + 1, misses + 1
        off[one.choice.schedule] = problem.value(found) / one.guess
        if one.problem.fits(found) and problem.value(found) < problem.value(best):
            best, misses = found, 0
    return _with(problem, solution, best, fields, simulated, limits)


def _free(problem: Problem) -> list[Problem]:
    """*problem*; where what is offloaded is free, with each set of states that may be
    away, and activations that may leave by stage."""
    if problem.offloads_to is None:
        return [problem]
    return [replace(way, leaves_to=problem.offloads_to) for way in ways(problem)]


def _with(
    problem: Problem,
    solution: Solution,
    best: Candidate,
    fields: Sequence[_Field],
    simulated: int,
    limits: Limits,
) -> Solution:
    value = problem.value(best)
    assert solution.best is not None, "there is something to polish"
    before = solution.added  # where no preset fits
    added = Added(
        considered=sum(field.considered for field in fields),
        simulated=simulated,
        lower=min(solution.lower, value, *(field.lower for field in fields)),
        uniform_value=solution.value,
        uniform_lower=solution.lower,
    )
    if before is not None:
        lower = min(before.lower, value)
        added = replace(before, simulated=before.simulated + simulated, lower=lower)
    if best is solution.best:
        return replace(solution, added=added)
    others = solution.runners_up if before else (solution.best, *solution.runners_up)
    bigger = solution.too_big
    faster = bigger is not None and problem.value(bigger) < value * WORTHWHILE
    return replace(
        solution,
        best=best,
        value=value,
        lower=min(solution.lower, value),
        runners_up=others[: limits.runners_up],
        too_big=bigger if faster else None,
        added=added,
    )


@dataclass(frozen=True, slots=True)
class _Rows:
    """Candidates that keep everything: their bounds, and what they may come to."""

    columns: Columns
    bounds: Array
    guesses: Array


@dataclass(frozen=True, slots=True, kw_only=True)
class _Promise:
    """A choice whose retention is to be fitted: what its value does not go below, and
    what it may come to."""

    problem: Problem
    choice: Uniform
    least: float
    guess: float


class _Field:
    """The candidates whose retention is worth choosing; *value* is to be beaten. It is
    *tight* where no preset fits.

    Raises OutOfTime where the time of *clock* ends before they are known.
    """

    def __init__(
        self, problem: Problem, value: float, clock: Clock, *, tight: bool
    ) -> None:
        self.problem, self.clock, self.tight = problem, clock, tight
        clock.require()
        self.space = Space.of(problem).keeping_all()
        self.lower, self.considered = inf, 0
        self._rows = self._found(value)

    def promising(self) -> Iterator[_Promise]:
        """Up to `LISTED` choices, best first."""
        if self._rows is None:
            return
        rows = self._rows
        for row in np.argsort(rows.guesses, kind="stable")[:LISTED].tolist():
            choice = self.space.choice(rows.columns, row)
            yield _Promise(
                problem=self.problem,
                choice=replace(choice, recompute=AUTO),
                least=float(rows.bounds[row]),
                guess=float(rows.guesses[row]),
            )

    def _found(self, value: float) -> _Rows | None:
        problem, trunks = self.problem, self.space.trunks
        if not length(trunks):
            return None
        table = self._may_beat(value, trunks)
        if not length(table):
            return None
        columns = self.space.leaves(table)
        self.clock.require()
        limit = problem.memory_limit_bytes
        over = leaf_bytes(self.space.problem, columns)
        self.clock.require()
        columns, over = columns.take(over > limit), over[over > limit]
        bounds = self._values(columns, over)
        rows = np.flatnonzero(bounds < value)
        if not len(rows):
            return None
        columns, bounds, over = columns.take(rows), bounds[rows], over[rows]
        leanest, again = self._leanest(columns)
        made = self._made(leanest, again)
        self.clock.require()
        fits = made <= limit
        if not fits.any():
            return None
        bounds, over, made = bounds[fits], over[fits], made[fits]
        share = (over - limit) / np.maximum(over - made, 1.0)
        full = self._values(again.take(fits), made, leanest)
        power = CONVEX if problem.offers("recompute", BY_NAME) else WHOLE
        guesses = bounds + np.clip(share, 0, 1) ** power * (full - bounds)
        self.considered = len(bounds)
        self.lower = min(self.lower, float(bounds.min()))
        return _Rows(columns.take(fits), bounds, guesses)

    def _leanest(self, columns: Columns) -> tuple[Problem, Columns]:
        """*columns* that make everything again, and have away all that may leave; with
        the problem whose prices theirs are."""
        again = replace(columns, recompute=np.full_like(columns.recompute, _FULL))
        problem = self.space.problem
        if problem.leaves_to is None:
            return problem, again
        away = replace(problem.offload, activations=1.0, tier=problem.leaves_to)
        return replace(problem, offload=away), replace(again, offload=away)

    def _made(self, problem: Problem, columns: Columns) -> Array:
        """Bytes of *columns*, which make everything again: in segments, if it has to
        be; of any length where no preset fits."""
        if self.tight:
            return leaf_bytes(problem.by_stage(), columns)
        found = leaf_bytes(problem, columns)
        over = np.flatnonzero(found > self.problem.memory_limit_bytes)
        if len(over) and len(self.problem.job.graph.kinds) == 1:
            some = columns.take(over)
            some = replace(some, recompute=np.full_like(some.recompute, SQRT))
            found[over] = np.minimum(found[over], leaf_bytes(problem, some))
        return found

    def _may_beat(self, value: float, trunks: Table) -> Table:
        """Of the branches of *trunks* those whose floors are below *value*, as many as
        are priced."""
        problem = self.space.problem

        def floors(some: Table) -> Array:
            return np.asarray(problem.value_of(floor_s(problem, some), 0.0))

        glance = rough_s(problem, trunks, between=self.clock.require)
        rough = np.asarray(problem.value_of(glance, 0.0))
        queue = BranchQueue(
            trunks, rough, floors, lambda: self.clock.over, self.space.opened
        )
        table, _ = queue.take(MOST_BRANCHES, below=value)
        self.clock.require()
        if length(table) == MOST_BRANCHES:
            self.lower = min(self.lower, queue.least)
        return table

    def _values(
        self, columns: Columns, peak_bytes: Array, problem: Problem | None = None
    ) -> Array:
        """What the values of *columns* do not go below."""
        seconds = leaf_s(problem or self.space.problem, columns)
        return np.asarray(self.problem.value_of(seconds, peak_bytes))
