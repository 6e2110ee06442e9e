"""Stages of unequal layers: 1F1B of any cut, beside the layouts of a search's space.

What a rank takes is not what it holds: the first stages of 1F1B hold most micro-batches
in flight, the last one has the head. People give the ends fewer layers (Megatron-LM's
--decoder-first-pipeline-num-layers and -last-), or cut freely (Narayanan et al., SOSP
2019). For every candidate of the space that runs 1F1B on several stages, all cuts
between any layers are one *family*:

    floor(branch)   no cut of any ZeRO level takes less             → cut_floors
    bound(family)   the same with the memory of its stages          → cut_floors
                    and once its stages are priced one by one       → cut_table
    best first      the cuts whose slowest stage is fastest are simulated, and those of
                    the best family moved a layer at a time

Families whose bound is not below the best value are ruled out; of the others the bound
stays open, and is the certificate.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from heapq import heappop, heappush
from itertools import islice
from math import inf
from typing import Final

import numpy as np

from costmodel.auto_retention import AUTO
from costmodel.columns import RECOMPUTES, SQRT, Columns
from costmodel.known import Known
from costmodel.pins import pins_cut
from costmodel.uniform import Uniform
from planner.axes import ONE_F_ONE_B
from planner.branch_queue import BranchQueue
from planner.cut_floors import CutFloor, CutRoom, keep_too_much
from planner.cut_table import Cut, CutTable
from planner.cut_units import Units
from planner.floors import rough_s
from planner.problem import Candidate, Objective, Problem
from planner.search import Clock, Limits
from planner.solution import EXACT, WORTHWHILE, Counters, Cuts, Solution, Status
from planner.space import Space
from planner.stage_places import is_unlike
from planner.table import Array, Table, length, take
from profiles.errors import MeshwrightError, OutOfTime

NONE, FULL = RECOMPUTES.index("none"), RECOMPUTES.index("full")
MOST_OPENED: Final = 10_000  # branches; what is left stays open at its floor
BATCH: Final = 512  # branches opened at a time
TRIED: Final = 4  # cuts of a family that are simulated
FITTED: Final = 2  # whose retention is fitted, of a family
MOVES: Final = 24  # of a cut, before it is left as it is
MOVES_FITTED: Final = 8  # the same, retention fitted each time
MOST: Final = 40  # families that are
MOST_GUESSED: Final = 12  # families whose retention by stage is guessed
MOST_FITTED: Final = 6  # of them that are fitted
MISSES: Final = 2  # of them in a row that bring nothing
HOPELESS: Final = 1.03  # times the best: what is guessed to take longer is not fitted
MOST_PRICED: Final = 400  # families whose stages are priced one by one


def are_searched(problem: Problem) -> bool:
    """Whether stages of unequal layers are in the space of *problem*: not where its
    pins or its machine ask for what the bounds of cuts do not know."""
    pins = problem.pins
    return (
        pins.schedule in (None, "1f1b")
        and pins.virtual_stages in (None, 1)
        and pins.recompute_layers is None
        and pins.recompute != "sqrt"
        and problem.objective is not Objective.MEMORY
        and not problem.offload.anything
        and not is_unlike(problem)
        and Units.of(problem.job.graph) is not None
    )


def with_cuts(problem: Problem, solution: Solution, limits: Limits) -> Solution:
    """*solution*, or a cut of the layers that is better, with the bound of both."""
    if not are_searched(problem):
        return solution
    clock = Clock(limits=limits)
    branches = families(problem)
    if not length(branches):
        return solution
    hunt = _Hunt(problem=problem, clock=clock, value=solution.value)
    hunt.run(branches)
    fitting = _Fitting(
        problem=problem,
        clock=clock,
        value=hunt.value,
        known=hunt.known,
        tries=FITTED,
        moves=MOVES_FITTED,
    )
    if problem.pins.recompute is None:
        fitting.run(take(branches, branches["recompute"] == NONE))
    return _merged(problem, solution, hunt, fitting, limits)


def families(problem: Problem) -> Table:
    """The branches that run 1F1B on several stages, which the pins cut."""
    branches = Space.of(problem).branches
    woven = (branches["schedule"] == ONE_F_ONE_B) & (branches["pp"] > 1)
    if pins_cut(problem.pins):
        axes, size = Space.of(problem).axes, _units(problem).size
        for pp in np.unique(branches["pp"]).tolist():
            turns = all(count % size == 0 for count in axes.cut(pp) or ())
            woven &= (branches["pp"] != pp) | (turns and not axes.is_even(pp))
    return take(branches, woven & (branches["recompute"] != SQRT))


def _units(problem: Problem) -> Units:
    found = Units.of(problem.job.graph)
    assert found is not None, "they are searched"
    return found


def _merged(
    problem: Problem,
    solution: Solution,
    hunt: _Hunt,
    fitting: _Fitting,
    limits: Limits,
) -> Solution:
    lower = min(solution.lower, hunt.lower)
    found = fitting.best or hunt.best
    cuts = Cuts(
        considered=hunt.considered,
        simulated=hunt.simulated,
        by_memory=hunt.by_memory,
        lower=hunt.lower,
        even_value=None if pins_cut(problem.pins) else solution.value,
        fitted=fitting.simulated,
        fitted_lower=min(lower, fitting.lower),
    )
    best, others = solution.best, solution.runners_up
    if found is not None:
        best = found
        before = [solution.best] if solution.best is not None else []
        others = tuple([*before, *others][: limits.runners_up])
    value = inf if best is None else problem.value(best)
    proven = best is not None and lower >= value * (1 - EXACT)
    bigger = solution.too_big
    faster = bigger is not None and problem.value(bigger) < value * WORTHWHILE
    status = Status.OPTIMAL if proven else Status.FEASIBLE
    unit = float(problem.value_of(1.0, 1.0))
    if cuts.even_value is None:
        counted = _counters(solution.counters, hunt, fitting)
        solution = replace(solution, counters=counted)
    return replace(
        solution,
        best=best,
        value=value,
        status=Status.INFEASIBLE if best is None else status,
        lower=value if proven else min(lower, value),
        lower_step_time_s=min(solution.lower_step_time_s, hunt.lower / unit),
        seconds=solution.seconds + hunt.clock.seconds,
        runners_up=others,
        too_big=bigger if faster else None,
        cuts=cuts,
    )


def _counters(even: Counters, hunt: _Hunt, fitting: _Fitting) -> Counters:
    """Where each candidate has one cut."""
    simulated = hunt.simulated + fitting.simulated
    left = max(hunt.considered - hunt.by_memory - simulated, 0)
    return Counters(
        considered=even.considered + hunt.considered,
        simulated=even.simulated + simulated,
        by_memory=even.by_memory + hunt.by_memory,
        by_value=even.by_value + left,
    )


@dataclass(order=True, slots=True)
class _Family:
    """All cuts of one candidate, by what none of them goes below."""

    bound: float
    number: int
    columns: Columns = field(compare=False)
    most_units: int = field(compare=False)
    table: CutTable | None = field(default=None, compare=False)


@dataclass(kw_only=True)
class _Hunt:
    """The best value so far, and the families that may hold a better cut."""

    problem: Problem
    clock: Clock
    value: float
    tries: int = TRIED
    moves: int = MOVES
    best: Candidate | None = None
    considered: int = 0
    by_memory: int = 0
    simulated: int = 0
    known: Known = field(default_factory=Known)
    _open: list[_Family] = field(default_factory=list)
    _settled: float = inf  # the least bound of families that were tried
    _queue: BranchQueue | None = None
    _numbered: int = 0
    _priced: int = 0
    _opened: int = 0
    _best_family: _Family | None = None

    def run(self, branches: Table) -> None:
        """Look for the best cut of *branches*, as far as there is time."""
        try:
            self._begin(branches)
        except OutOfTime:
            self._settled = 0.0
            return
        self.prove()
        self.climb()

    def _begin(self, branches: Table) -> None:
        """Put all *branches* in order. Raises OutOfTime."""
        problem = self.problem
        self.considered = int(branches["leaves"].sum())
        self.unit = float(problem.value_of(1.0, 1.0))
        self.units = _units(problem)
        rough = self.unit * rough_s(problem, branches, between=self.clock.require)
        self._queue = BranchQueue(
            branches, rough, self._floors, lambda: self.clock.over
        )

    @property
    def lower(self) -> float:
        """No cut of any family has a smaller value; 0 where time was over before that
        was known."""
        left = inf if self._queue is None else self._queue.least
        waiting = self._open[0].bound if self._open else inf
        return min(self._settled, left, waiting, self.value)

    def prove(self) -> None:
        """Simulate until no family that is left can be better, or enough were."""
        tried = 0
        while not self.clock.over and tried < MOST and self._priced < MOST_PRICED:
            family = self._next()
            if family is None:
                return
            if family.table is None:
                self._price(family)
                continue
            self._try(family)
            tried += 1
            self._settled = min(self._settled, family.bound)

    def climb(self) -> None:
        """Move the cuts of the best candidate a unit at a time, while that helps."""
        family = self._best_family
        if pins_cut(self.problem.pins):
            return
        if family is None or family.bound >= self._enough:
            return
        assert family.table is not None, "it was tried"
        while not self.clock.over:
            assert self.best is not None, "it has a family"
            before = self.best.choice.layers_per_stage
            assert before is not None, "it is a cut"
            size = self.units.size
            here = tuple(count // size for count in before)
            near = (cut for cut in moved(here) if family.table.fits(cut))
            for cut in islice(near, self.moves):
                if self._judge(family, cut) or self.clock.over:
                    break
            else:
                return

    @property
    def _enough(self) -> float:
        """A bound that is no smaller is no better."""
        return self.value * (1 - EXACT)

    def _floors(self, branches: Table) -> Array:
        floor = CutFloor.of(self.problem, self.units, branches)
        return self.unit * floor.seconds(below_s=self.value / self.unit)

    def _next(self) -> _Family | None:
        """The family of the least bound, if it may be better."""
        assert self._queue is not None, "the hunt has begun"
        while not self.clock.over:
            waiting = self._open[0].bound if self._open else inf
            if self._opened >= MOST_OPENED and self._queue.least < self._enough:
                return heappop(self._open) if waiting < self._enough else None
            below = min(self._enough, waiting)
            if self._queue.least >= below:
                break
            branches, _ = self._queue.take(BATCH, below=below)
            if not length(branches):
                break
            self._opened += length(branches)
            self._spread(branches)
        if not self._open or self._open[0].bound >= self._enough:
            return None
        return heappop(self._open)

    def _spread(self, branches: Table) -> None:
        """Spell out those *branches* that fit as families."""
        space = Space.of(self.problem)
        at_most = self._at_most(CutFloor.of(self.problem, self.units, branches))
        lean = {**branches, "recompute": self._leanest(branches["recompute"])}
        lost = keep_too_much(self.problem, self.units, lean, at_most)
        self.by_memory += int(branches["leaves"][lost].sum())
        branches = take(branches, ~lost)
        if not length(branches):
            return
        columns, owner = space.leanest(branches)
        fits = np.zeros(length(branches), dtype=bool)
        fits[owner] |= self._bounds(take(branches, owner), columns)[0] < inf
        self.by_memory += int(branches["leaves"][~fits].sum())
        if not fits.any():
            return
        branches = take(branches, fits)
        owner = np.repeat(np.arange(length(branches)), branches["leaves"])
        columns = space.leaves(branches)
        rows = np.flatnonzero(self._keeps_pace(take(branches, owner), columns))
        if not len(rows):
            return
        columns = columns.take(rows)
        bounds, most = self._bounds(take(branches, owner[rows]), columns)
        self.by_memory += int((bounds == inf).sum())
        for row in np.flatnonzero(bounds < self._enough).tolist():
            self._numbered += 1
            family = _Family(
                bound=float(bounds[row]),
                number=self._numbered,
                columns=columns.take(np.array([row])),
                most_units=int(most[row]),
            )
            heappush(self._open, family)

    def _keeps_pace(self, branches: Table, columns: Columns) -> Array:
        """Which rows may have a cut that is better, by the passes of its stages."""
        if self.value == inf:
            return np.ones(len(columns), dtype=bool)
        floor = CutFloor.of(self.problem, self.units, branches)
        room = self._room(columns, self._at_most(floor))
        return room.keeps_pace(floor.pace_s(self._enough / self.unit))

    def _room(self, columns: Columns, at_most: Array) -> CutRoom:
        return CutRoom(
            problem=self.problem, units=self.units, columns=columns, at_most=at_most
        )

    def _at_most(self, floor: CutFloor) -> Array:
        """How many units that are not leading a stage has of a cut that is better."""
        pace_s = np.minimum(self.value / self.unit / floor.micro_batches, floor.trip_s)
        units = self.units.count - self.units.leading
        return np.minimum(pace_s / floor.unit_s + 1e-6, units).astype(int)

    def _bounds(self, branches: Table, columns: Columns) -> tuple[Array, Array]:
        """What no cut of each row goes below, with the memory of its stages; and how
        many units a stage has at most of one that is better than the best."""
        at_most = self._at_most(CutFloor.of(self.problem, self.units, branches))
        room = self._room(self._lean(columns), at_most)
        rows = np.flatnonzero(room.may_fit())
        bounds = np.full(len(columns), inf)
        if len(rows):
            floor = CutFloor.of(self.problem, self.units, take(branches, rows))
            most, below_s = room.take(rows).by_stage(), self.value / self.unit
            bounds[rows] = self.unit * floor.seconds(most=most, below_s=below_s)
        return bounds, at_most

    def _price(self, family: _Family) -> None:
        """Price the family's stages, and bound it by them."""
        self._priced += 1
        most = min(family.most_units + self.units.leading, self.units.count)
        family.table = CutTable.of(self.problem, self.units, family.columns, most)
        bound = family.table.bound_s(self.value / self.unit) * self.unit
        family.bound = max(family.bound, bound)
        if (cut := self._pinned(family.table)) is not None:
            family.bound = max(family.bound, family.table.bound_of(cut) * self.unit)
        if family.bound < inf:
            heappush(self._open, family)

    def _leanest(self, recompute: Array) -> Array:
        """What is made again where least is needed."""
        return recompute

    def _lean(self, columns: Columns) -> Columns:
        """*columns* as they need least."""
        return replace(columns, recompute=self._leanest(columns.recompute))

    def _choice(self, family: _Family, cut: Cut) -> Uniform:
        """The family's layout with its layers *cut* so."""
        choice = Space.of(self.problem).choice(family.columns, 0)
        counts = tuple(count * self.units.size for count in cut)
        return replace(choice, layers_per_stage=counts)

    def _try(self, family: _Family) -> None:
        assert family.table is not None, "it is priced"
        for cut in self._cuts(family.table):
            self._judge(family, cut)
            if self.clock.over or family.bound >= self._enough:
                return

    def _cuts(self, table: CutTable) -> Iterator[Cut]:
        """The cut that is pinned, or those that are likely to be fast."""
        cut = self._pinned(table)
        if cut is None:
            return islice(table.tried(), self.tries)
        return iter([cut] if table.fits(cut) else [])

    def _pinned(self, table: CutTable) -> Cut | None:
        pinned = Space.of(self.problem).axes.cut(table.pp)
        return pinned and tuple(count // self.units.size for count in pinned)

    def _judge(self, family: _Family, cut: Cut) -> bool:
        """Simulate a *cut*; whether it fits and is the best."""
        choice = self._choice(family, cut)
        self.simulated += 1
        try:
            found = self.problem.simulate(choice, self.known)
        except MeshwrightError:
            return False
        value = self.problem.value(found)
        if value >= self.value or not self.problem.fits(found):
            return False
        self.best, self.value, self._best_family = found, value, family
        return True


@dataclass(kw_only=True)
class _Fitting(_Hunt):
    """The same with retention chosen stage by stage: a stage makes again what its
    memory asks for. No cut takes less than one that keeps everything and needs what
    one needs that makes everything again; which are promising is guessed."""

    guessed: list[tuple[float, _Family]] = field(default_factory=list)

    def prove(self) -> None:
        """Simulate the most promising; what is left stays open."""
        while not self.clock.over and self._priced < MOST_GUESSED:
            family = self._next()
            if family is None:
                break
            self._price(family)
            self._settled = min(self._settled, family.bound)
        misses = 0
        for guess, family in sorted(self.guessed, key=lambda one: one[0])[:MOST_FITTED]:
            if self.clock.over or misses == MISSES or guess > self.value * HOPELESS:
                return
            before = self.value
            self._try(family)
            misses = misses + 1 if self.value == before else 0

    def _leanest(self, recompute: Array) -> Array:
        return np.full_like(recompute, FULL)

    def _price(self, family: _Family) -> None:
        self._priced += 1
        most = min(family.most_units + self.units.leading, self.units.count)
        known, columns = (self.problem, self.units), family.columns
        below_s = self.value / self.unit
        kept = CutTable.of(*known, columns, most, leanest=self._lean(columns))
        family.bound = max(family.bound, kept.bound_s(below_s) * self.unit)
        if family.bound >= self._enough:
            return
        presets = [_making_again(columns, code) for code in self._presets]
        family.table = CutTable.mixed(*known, presets, most)
        guess = family.table.bound_s(below_s) * self.unit
        if guess < inf:
            self.guessed.append((guess, family))

    def _choice(self, family: _Family, cut: Cut) -> Uniform:
        return replace(super()._choice(family, cut), recompute=AUTO)

    @property
    def _presets(self) -> list[int]:
        """Those of the space, keeping all first."""
        found = [code for (code,) in Space.of(self.problem).axes.recomputes()]
        return sorted(found, key=lambda code: code != NONE)


def _making_again(columns: Columns, code: int) -> Columns:
    return replace(columns, recompute=np.full_like(columns.recompute, code))


def moved(cut: Cut) -> Iterator[Cut]:
    """*cut* with a unit moved from any stage to any other, neighbours first."""
    stages = range(len(cut))
    pairs = [(one, two) for one in stages for two in stages if one != two]
    for one, two in sorted(pairs, key=lambda pair: abs(pair[0] - pair[1])):
        least = 1 if 0 < one < len(cut) - 1 else 0
        if cut[one] > least:
            found = list(cut)
            found[one] -= 1
            found[two] += 1
            yield tuple(found)
