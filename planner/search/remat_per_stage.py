"""What a search found, with retention chosen stage by stage: never worse than without.

    candidates that do not fit keeping everything, fit making everything again, and are
    faster than the best as long as they keep everything           → the columns' price
    what each may come to is guessed from mixtures of presets      → least_mixture
    the most promising get the cheapest retention that fits        → auto_retention

No guess is much too high (`TOO_HIGH`): what is left once the best guess cannot be
better is as good as ruled out, in whatever order it lay, so that a pinned part of the
answer brings nothing to light that was not tried without it. The proof of the search
stays as it is; `Added` says what was looked at beside it, and a bound of that: keeping
everything is never slower than not.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from math import inf
from typing import Final

import numpy as np

from costmodel.layout import AUTO, RECOMPUTES, SQRT, Columns, Uniform
from costmodel.options import Pins
from costmodel.stages import Known
from costmodel.support import BY_NAME, BY_STAGE
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
from planner.search.frontier import LEVELS
from planner.search.mixture import least_mixture
from planner.search.offload import ways
from planner.search.search import Clock, Limits
from profiles.arrays import Array
from profiles.errors import Contradiction, OutOfTime

# How far guesses are above what comes out, at most. [measured] 345 layouts of all
# schedules (random questions and those of benchmarks.plan): the mixture of presets is
# up to 1.10 times that, the power of the share 1.04; the less of both at these factors
# never is above, with a median of 0.95. Among layouts that differ in ZeRO alone the
# ratio to the mixture varies by up to 1.04.
TOO_HIGH: Final = 1.08  # of the mixture of presets
CONVEX_TOO_HIGH: Final = 1.04
SPREAD: Final = 1.04
UNTRIED: Final = 1.05
# What is made again for the first bytes costs next to nothing (norms, activations), for
# the last ones whole products: seconds grow as about this power of the share of bytes.
CONVEX: Final = 4
WHOLE: Final = 1  # where layers are made again whole
MOST_WORK: Final = 768  # stages that are fitted; what is left stays open
TRIAL: Final = 8  # of them that a candidate takes the time of, beside its own; of each
# kind of layer
FIRST_BATCH, GROWTH = 1024, 4  # branches that are spelled out at a time
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
    tight = solution.added is not None
    trials = _Trials(best=solution.best, value=solution.value, clock=clock)
    try:
        trials.fields = [_Field(one, clock, tight=tight) for one in _free(problem)]
        trials.run()
    except OutOfTime:
        if not trials.fields:
            return solution
    return _with(problem, solution, trials, limits)


@dataclass(kw_only=True)
class _Trials:
    """The most promising candidates, fitted one after another."""

    best: Candidate
    value: float
    clock: Clock
    fields: Sequence[_Field] = ()
    simulated: int = 0
    known: Known = field(default_factory=Known)
    _open: list[_Promise] = field(default_factory=list)
    _left: float = inf  # the least bound of those that are not likely to be better
    _came_to: dict[Key, float] = field(default_factory=dict)  # the guess, times this
    _work: int = 0

    @property
    def lower(self) -> float:
        """No candidate has a smaller value."""
        waiting = [one.least for one in self._open]
        for one in self.fields:
            waiting += [one.least, one.left]
        return min(self.value, self._left, *waiting)

    def run(self) -> None:
        """Fit until nothing that is left is likely to be better. Raises OutOfTime."""
        while not self.clock.over and self._work < MOST_WORK:
            nearest = min(self.fields, key=lambda one: one.least)
            enough = self._set_aside()
            if nearest.least < min([enough, *map(self._likely, self._open)]):
                self._open += nearest.spread(self.value)
            elif self._open:
                one = min(self._open, key=self._expected)
                self._open.remove(one)
                self._judge(one)
            else:
                return

    def _set_aside(self) -> float:
        """Leave what is not likely to be better than the best; the value from which
        on nothing is."""
        enough, found = self.value * (1 - EXACT), []
        for one in self._open:
            if self._likely(one) < enough:
                found.append(one)
            else:
                self._left = min(self._left, one.least)
        self._open = found
        return enough

    def _likely(self, one: _Promise) -> float:
        """What it is not likely to go below."""
        known = self._came_to.get(one.alike, 0.0) * one.guess / SPREAD
        return max(one.likely, known)

    def _expected(self, one: _Promise) -> float:
        """What it may come to; at the least, where no pipeline like it was tried."""
        came_to = self._came_to.get(one.pipeline, 1 / UNTRIED)
        return max(came_to * one.guess, one.least)

    def _judge(self, one: _Promise) -> None:
        found = one.problem.simulate(one.choice, self.known)
        value = one.problem.value(found)
        self.simulated += 1
        kinds = len(one.problem.job.graph.kinds)
        self._work += kinds * (TRIAL + one.choice.pp * one.choice.virtual_stages)
        for key in (one.alike, one.pipeline):
            before = self._came_to.get(key, inf)
            self._came_to[key] = min(before, value / one.guess)
        if one.problem.fits(found) and value < self.value:
            self.best, self.value = found, value


def _free(problem: Problem) -> list[Problem]:
    """*problem*; where what is offloaded is free, with each set of states that may be
    away, and activations that may leave by stage."""
    if problem.free_bits:
        return list(ways(problem))
    if problem.offloads_to is None:
        return [problem]
    return [replace(way, leaves_to=problem.offloads_to) for way in ways(problem)]


def _with(
    problem: Problem, solution: Solution, trials: _Trials, limits: Limits
) -> Solution:
    best, value = trials.best, trials.value
    assert solution.best is not None, "there is something to polish"
    before = solution.added  # where no preset fits
    added = Added(
        considered=sum(one.considered for one in trials.fields),
        simulated=trials.simulated,
        lower=min(solution.lower, trials.lower),
        uniform_value=solution.value,
        uniform_lower=solution.lower,
    )
    if before is not None:
        simulated = before.simulated + trials.simulated
        lower = min(before.lower, value)
        added = replace(before, simulated=simulated, lower=lower)
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
    """Candidates that fit if they make everything again, and not if they keep it: bytes
    of each where all is kept, and where all is made again."""

    columns: Columns
    kept: Array
    made: Array

    def take(self, rows: Array) -> _Tight:
        return _Tight(self.columns.take(rows), self.kept[rows], self.made[rows])


Key = tuple[object, ...]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Promise:
    """A choice whose retention is to be fitted: what its value does not go below, what
    it is not likely to, and what it is guessed to come to. Those that are *alike*
    differ in ZeRO alone."""

    problem: Problem
    choice: Uniform
    alike: Key
    least: float
    likely: float
    guess: float

    @property
    def pipeline(self) -> Key:
        return self.choice.schedule, self.choice.pp, self.choice.virtual_stages


class _Field:
    """The candidates whose retention is worth choosing, those of the least floors
    first. It is *tight* where no preset fits.

    Raises OutOfTime where the time of *clock* ends before they lie in order.
    """

    def __init__(self, problem: Problem, clock: Clock, *, tight: bool) -> None:
        self.problem, self.clock, self.tight = problem, clock, tight
        clock.require()
        self.space = Space.of(problem).keeping_all()
        self.considered, self._batch, self._opening = 0, FIRST_BATCH, inf
        self.left = inf  # the least bound of those that are not likely to be better
        self._between = self._ways_between()
        self._queue = self._in_order()
        clock.require()

    @property
    def least(self) -> float:
        """No candidate that was not spelled out has a smaller value."""
        left = inf if self._queue is None else self._queue.least
        return min(left, self._opening)

    def spread(self, value: float) -> list[_Promise]:
        """The next candidates that may be better than *value*. Raises OutOfTime."""
        assert self._queue is not None, "there is something left"
        table, floors = self._queue.take(self._batch, below=value)
        self._batch *= GROWTH
        self._opening = floors.min(initial=inf)  # until all of them are spelled out
        found = list(self._promises(table, value)) if length(table) else []
        self._opening = inf
        return found

    def _promises(self, table: Table, value: float) -> Iterator[_Promise]:
        tight = self._tight(self._may_be_tight(table))
        self.considered += len(tight.columns)
        bounds = self._values(tight.columns, tight.kept)
        rows = np.flatnonzero(bounds < value)
        tight, bounds = tight.take(rows), bounds[rows]
        mixed, convex = self._guessed(tight, bounds)
        likely = np.minimum(mixed / TOO_HIGH, convex / CONVEX_TOO_HIGH)
        likely = np.maximum(likely, bounds)
        self.left = min(self.left, bounds[likely >= value].min(initial=inf))
        for row in np.flatnonzero(likely < value).tolist():
            choice = replace(self.space.choice(tight.columns, row), recompute=AUTO)
            plain = replace(choice, zero=0, zero_group=1)
            yield _Promise(
                problem=self.problem,
                choice=choice,
                alike=(self.problem.offload, plain),
                least=float(bounds[row]),
                likely=float(likely[row]),
                guess=float(mixed[row]),
            )

    def _in_order(self) -> BranchQueue | None:
        """The branches by their floors; None where there are none."""
        problem, trunks = self.space.problem, self.space.trunks
        if not length(trunks):
            return None

        def floors(some: Table) -> Array:
            return np.asarray(problem.value_of(floor_s(problem, some), 0.0))

        glance = rough_s(problem, trunks, between=self.clock.require)
        rough = np.asarray(problem.value_of(glance, 0.0))
        late = self.clock
        return BranchQueue(trunks, rough, floors, lambda: late.over, self.space.opened)

    def _may_be_tight(self, table: Table) -> Columns:
        """The candidates of *table* but those of a level of ZeRO of which none fits
        making everything again, or all do keeping it."""
        limit = self.problem.memory_limit_bytes
        may = np.zeros((length(table), len(LEVELS)), dtype=bool)
        columns, branch = self.space.leanest(table)
        fits = self._made(*self._leanest(columns)) <= limit
        may[branch[fits], columns.zero[fits]] = True
        self.clock.require()
        some = np.flatnonzero(may.any(axis=1))
        table, may = take(table, some), may[some]
        if not length(table):
            return columns.take(np.empty(0, dtype=np.int64))
        columns, branch = self.space.fullest(table)
        fits = self._kept(columns) <= limit
        may[branch[fits], columns.zero[fits]] = False
        self.clock.require()
        some = np.flatnonzero(may.any(axis=1))
        table, may = take(table, some), may[some]
        columns = self.space.leaves(table)
        owner = np.repeat(np.arange(length(table)), table["leaves"])
        return columns.take(np.flatnonzero(may[owner, columns.zero]))

    def _tight(self, columns: Columns) -> _Tight:
        """Those of *columns* that are."""
        limit = self.problem.memory_limit_bytes
        self.clock.require()
        kept = self._kept(columns)
        rows = np.flatnonzero(kept > limit)
        columns, kept = columns.take(rows), kept[rows]
        self.clock.require()
        made = self._made(*self._leanest(columns))
        return _Tight(columns, kept, made).take(np.flatnonzero(made <= limit))

    def _guessed(self, tight: _Tight, bounds: Array) -> tuple[Array, Array]:
        """What the values of those that are *tight* may come to, by their *bounds*: as
        mixtures of presets, and by the share of the bytes that has to go."""
        problem = self.space.problem
        leanest, again = self._leanest(tight.columns)
        values = [bounds, self._values(again, tight.made, leanest)]
        needed = [tight.kept, tight.made]
        for code in self._between:
            self.clock.require()
            some = making_again(tight.columns, code)
            needed.append(leaf_bytes(problem, some))
            values.append(self._values(some, needed[-1]))
        limit = self.problem.memory_limit_bytes
        share = (tight.kept - limit) / np.maximum(tight.kept - tight.made, 1.0)
        power = CONVEX if self.problem.offers("recompute", BY_NAME) else WHOLE
        convex = bounds + np.clip(share, 0, 1) ** power * (values[1] - bounds)
        return least_mixture(values, needed, limit).of(values), convex

    def _ways_between(self) -> list[int]:
        """The presets that stages may mix between keeping and making again all."""
        if not self.problem.offers("recompute in", BY_STAGE):
            return []
        presets = [code for (code,) in Space.of(self.problem).axes.recomputes()]
        return [one for one in presets if one not in (_NONE, _FULL, SQRT)]

    def _kept(self, columns: Columns) -> Array:
        return leaf_bytes(self.space.problem, columns)

    def _leanest(self, columns: Columns) -> tuple[Problem, Columns]:
        """*columns* that make everything again, and have away all that may leave; with
        the problem whose prices theirs are."""
        again = making_again(columns, _FULL)
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
            some = making_again(columns.take(over), SQRT)
            found[over] = np.minimum(found[over], leaf_bytes(problem, some))
        return found

    def _values(
        self, columns: Columns, peak_bytes: Array, problem: Problem | None = None
    ) -> Array:
        """What the values of *columns* do not go below."""
        seconds = leaf_s(problem or self.space.problem, columns)
        return np.asarray(self.problem.value_of(seconds, peak_bytes))


def making_again(columns: Columns, code: int) -> Columns:
    return replace(columns, recompute=np.full_like(columns.recompute, code))
