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

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
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
    take,
)
from planner.search.bounds import floor_s, leaf_bytes, leaf_s, rough_s
from planner.search.branch_queue import BranchQueue
from planner.search.offload import ways
from planner.search.search import Clock, Limits
from profiles.arrays import Array
from profiles.errors import Contradiction, OutOfTime

MOST: Final = 8  # candidates of a schedule that are fitted
MISSES: Final = 3  # of them in a row that bring nothing: the next will not either
TOO_HIGH: Final = 0.96  # of a guess: at most that far is it above what comes out
# What is made again for the first bytes costs next to nothing (norms, activations), for
# the last ones whole products: seconds grow as this power of the share of bytes.
# [fitted by hand] the first fitted is the best of all in four searches of five (gpt-13b
# on 8 devices at three probabilities, on 64, gpt-1t on 3072); with 1 the 4th to 7th.
CONVEX: Final = 4
WHOLE: Final = 1  # where layers are made again whole
MOST_BRANCHES: Final = 8192  # that are priced
MOST_FULL: Final = 512  # of those of whose leanest candidates none is promising
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
        parts = [
            _Field(one, solution.value, clock, tight=solution.added is not None)
            for one in _free(problem)
        ]
    except OutOfTime:
        return solution
    trials = _Trials(solution.best, solution.value)
    for one in trials.of([one for part in parts for one in part.promising()]):
        if clock.over:
            break
        trials.judge(one)
    return _with(problem, solution, trials.best, parts, trials.simulated, limits)


@dataclass
class _Record:
    """What came of the trials of a schedule."""

    value: float = inf  # the best that fits
    tried: int = 0
    missed: int = 0  # in a row
    added: float = 0.0  # to the values of candidates that keep everything, in all
    guessed: float = 0.0  # the same, as it was guessed
    least: float = 0.0  # those values, in all

    def likely(self, least: float, guess: float) -> float:
        """What a *guess* may come to: off by as much as those before were in what is
        made again, or in all."""
        if not self.guessed:
            return guess
        again = max(self.added / self.guessed, 1.0) * (guess - least)
        whole = (self.least + self.added) / (self.least + self.guessed)
        return min(least + again, max(whole, 1.0) * guess)


@dataclass
class _Trials:
    """The most promising candidates, fitted one after another.

    What is tried of a schedule hangs on that schedule alone, but for what cannot be
    better: so pinning one finds nothing that was not found without.
    """

    best: Candidate
    value: float
    known: Known = field(default_factory=Known)
    of_schedule: dict[str, _Record] = field(default_factory=dict)

    @property
    def simulated(self) -> int:
        return sum(one.tried for one in self.of_schedule.values())

    def of(self, left: list[_Promise]) -> Iterator[_Promise]:
        """Those of *left* that may be better, the most likely ones first."""
        while left := [one for one in left if self._may_be_better(one)]:
            one = min(left, key=self._likely)
            left.remove(one)
            yield one

    def judge(self, one: _Promise) -> None:
        found = one.problem.simulate(one.choice, self.known)
        value, fits = one.problem.value(found), one.problem.fits(found)
        record = self._record(one)
        record.tried += 1
        record.missed += 1
        record.least += one.least
        record.added += value - one.least
        record.guessed += one.guess - one.least
        if fits and value < record.value:
            record.value, record.missed = value, 0
        if fits and value < self.value:
            self.best, self.value = found, value

    def _record(self, one: _Promise) -> _Record:
        return self.of_schedule.setdefault(one.choice.schedule, _Record())

    def _likely(self, one: _Promise) -> float:
        """What it may come to at the least."""
        return TOO_HIGH * self._record(one).likely(one.least, one.guess)

    def _may_be_better(self, one: _Promise) -> bool:
        record = self._record(one)
        if record.missed == MISSES or record.tried == MOST:
            return False
        return max(one.least, self._likely(one)) < self.value * (1 - EXACT)


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
    parts: Sequence[_Field],
    simulated: int,
    limits: Limits,
) -> Solution:
    value = problem.value(best)
    assert solution.best is not None, "there is something to polish"
    before = solution.added  # where no preset fits
    added = Added(
        considered=sum(part.considered for part in parts),
        simulated=simulated,
        lower=min(solution.lower, value, *(part.lower for part in parts)),
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
class _Tight:
    """Candidates that fit if they make everything again, and not if they keep it: the
    branch of each, bytes beyond the limit, and bytes where all is made again."""

    columns: Columns
    branch: Array
    over: Array
    made: Array


@dataclass(frozen=True, slots=True)
class _Rows:
    """Candidates that keep everything, and the branch of each: their bounds, and what
    they may come to."""

    columns: Columns
    branch: Array
    bounds: Array
    guesses: Array

    def beside(self, others: _Rows) -> _Rows:
        return _Rows(
            Columns.concatenate([self.columns, others.columns]),
            np.concatenate([self.branch, others.branch]),
            np.concatenate([self.bounds, others.bounds]),
            np.concatenate([self.guesses, others.guesses]),
        )

    def likeliest(self) -> list[int]:
        """The best guess of each branch, the best first; of each schedule `MOST`."""
        found, seen, of = list[int](), set[int](), Counter[int]()
        for row in np.argsort(self.guesses, kind="stable").tolist():
            branch = int(self.branch[row])
            schedule = int(self.columns.schedule[row])
            if branch not in seen and of[schedule] < MOST:
                seen.add(branch)
                of[schedule] += 1
                found.append(row)
        return found


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
        """Of each schedule up to `MOST` choices, best first."""
        if (rows := self._rows) is None:
            return
        for row in rows.likeliest():
            choice = self.space.choice(rows.columns, row)
            yield _Promise(
                problem=self.problem,
                choice=replace(choice, recompute=AUTO),
                least=float(rows.bounds[row]),
                guess=float(rows.guesses[row]),
            )

    def _found(self, value: float) -> _Rows | None:
        """Branches by their leanest candidates, then all candidates of the best."""
        if not length(self.space.trunks):
            return None
        table, floors = self._may_beat(value)
        if not length(table):
            return None
        lean, branch = self.space.leanest(table)
        over = self._over(lean)
        tight = self._tight(lean, branch, over)
        all_fit = np.bincount(branch, weights=over > 0) == 0
        binds = self._full(table, np.flatnonzero(all_fit))
        binds[tight.branch] = True
        first = self._guessed(tight, value)
        others = binds.copy()
        others[first.branch] = False
        some = np.flatnonzero(others)[:MOST_FULL]
        first = first.beside(self._of_all(table, some, value))
        self.considered = int(table["leaves"][np.unique(first.branch)].sum())
        self.lower = min(self.lower, floors[binds].min(initial=inf))
        return self._of_all(table, first.branch[first.likeliest()], value)

    def _of_all(self, table: Table, branches: Array, value: float) -> _Rows:
        """The guesses of all candidates of some *branches* of *table*."""
        every = self.space.leaves(take(table, branches))
        owner = np.repeat(branches, table["leaves"][branches])
        return self._guessed(self._tight(every, owner, self._over(every)), value)

    def _full(self, table: Table, rest: Array) -> Array:
        """Of the branches whose leanest fit, the *rest*, those that have candidates
        that do not."""
        found = np.zeros(length(table), dtype=bool)
        if len(rest):
            columns, branch = self.space.fullest(take(table, rest))
            found[rest[branch[self._over(columns) > 0]]] = True
        return found

    def _over(self, columns: Columns) -> Array:
        """Bytes beyond the limit of *columns*, which keep everything."""
        self.clock.require()
        needed = leaf_bytes(self.space.problem, columns)
        return needed - self.problem.memory_limit_bytes

    def _tight(self, columns: Columns, branch: Array, over: Array) -> _Tight:
        """Of *columns* those that are *over* the limit, and may fit making everything
        again."""
        limit = self.problem.memory_limit_bytes
        rows = np.flatnonzero(over > 0)
        columns, branch, over = columns.take(rows), branch[rows], over[rows]
        self.clock.require()
        made = self._made(*self._leanest(columns))
        rows = np.flatnonzero(made <= limit)
        return _Tight(columns.take(rows), branch[rows], over[rows], made[rows])

    def _guessed(self, tight: _Tight, value: float) -> _Rows:
        """Of those that are *tight* what may be better than *value*."""
        limit = self.problem.memory_limit_bytes
        self.clock.require()
        bounds = self._values(tight.columns, limit + tight.over)
        rows = np.flatnonzero(bounds < value)
        bounds, over, made = bounds[rows], tight.over[rows], tight.made[rows]
        columns = tight.columns.take(rows)
        share = over / np.maximum(limit + over - made, 1.0)
        self.clock.require()
        leanest, again = self._leanest(columns)
        full = self._values(again, made, leanest)
        power = CONVEX if self.problem.offers("recompute", BY_NAME) else WHOLE
        guesses = bounds + np.clip(share, 0, 1) ** power * (full - bounds)
        return _Rows(columns, tight.branch[rows], bounds, guesses)

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

    def _may_beat(self, value: float) -> tuple[Table, Array]:
        """The branches whose floors are below *value*, as many as are priced."""
        problem, trunks = self.space.problem, self.space.trunks

        def floors(some: Table) -> Array:
            return np.asarray(problem.value_of(floor_s(problem, some), 0.0))

        glance = rough_s(problem, trunks, between=self.clock.require)
        rough = np.asarray(problem.value_of(glance, 0.0))
        queue = BranchQueue(
            trunks, rough, floors, lambda: self.clock.over, self.space.opened
        )
        table, least = queue.take(MOST_BRANCHES, below=value)
        self.clock.require()
        if length(table) == MOST_BRANCHES:
            self.lower = min(self.lower, queue.least)
        return table, least

    def _values(
        self, columns: Columns, peak_bytes: Array, problem: Problem | None = None
    ) -> Array:
        """What the values of *columns* do not go below."""
        seconds = leaf_s(problem or self.space.problem, columns)
        return np.asarray(self.problem.value_of(seconds, peak_bytes))
