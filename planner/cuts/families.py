"""`Families`: all cuts of every candidate that runs 1F1B, the best bound first.

Branches wait by their floors (`branch_queue`); those that may hold a better cut than
the best one are spelled out as families, first by what their stages keep, then by what
data parallelism adds to their passes, then by the memory of every stage (`cut_floors`).
The family of the least bound has its stages priced one by one (`cut_table`), which
bounds it again, and some of its cuts simulated.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from heapq import heapify, heappop, heappush
from itertools import combinations, islice, pairwise
from math import comb, inf
from typing import Final

import numpy as np

from costmodel.layout import Columns, Uniform
from costmodel.options import pins_cut
from costmodel.stages import Known
from planner.cuts.bounds import CutFloor, CutRoom, keep_too_much
from planner.cuts.table import Cut, CutTable
from planner.cuts.units import Units
from planner.problem import EXACT, Candidate, Problem, Space, Table, length, take
from planner.search import BranchQueue, Clock, rough_s
from profiles.arrays import Array
from profiles.errors import MeshwrightError, OutOfTime

MOST_OPENED: Final = 10_000  # branches; what is left stays open at its floor
BATCH: Final = 512  # branches opened at a time
TRIED: Final = 4  # cuts of a family that are simulated
FEW: Final = 24  # cuts that a family has at most where all of them are simulated
MOVES: Final = 24  # of a cut, before it is left as it is
MOST: Final = 40  # families that are tried
MOST_PRICED: Final = 4000  # families whose stages are priced one by one
TOGETHER: Final = 4096  # stages that are priced together at the least, if there are


@dataclass(order=True, slots=True)
class Family:
    """All cuts of one candidate, by what none of them goes below."""

    bound: float
    number: int
    columns: Columns = field(compare=False)
    most_units: int = field(compare=False)
    table: CutTable | None = field(default=None, compare=False)


@dataclass(kw_only=True)
class Families:
    """The best value so far, and the families that may hold a better cut."""

    problem: Problem
    clock: Clock
    value: float
    tries: int = TRIED
    moves: int = MOVES
    best: Candidate | None = None
    best_family: Family | None = None
    considered: int = 0
    by_memory: int = 0
    simulated: int = 0
    known: Known = field(default_factory=Known)
    _open: list[Family] = field(default_factory=list)
    _settled: float = inf  # the least bound of families that were tried
    _queue: BranchQueue | None = None
    _numbered: int = 0
    _priced: int = 0
    _opened: int = 0

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
        self.units = units_of(problem)
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
        """Simulate until no family that is left can be better, or enough were. Of what
        was priced together the best is tried at once: the better the value, the fewer
        are left to price."""
        tried = 0
        while not self.clock.over and tried < MOST and self._priced < MOST_PRICED:
            some = self._some()
            if not some:
                return
            family: Family | None = some[0]
            if some[0].table is None:
                self._price(some)
                family = self._best_priced()
            if family is None:
                continue
            tried += 1
            if not self._try(family):
                self._settled = min(self._settled, family.bound)

    def climb(self) -> None:
        """Move the cuts of the best candidate a unit at a time, while that helps."""
        family = self.best_family
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

    def _next(self) -> Family | None:
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

    def _some(self) -> list[Family]:
        """The next families: one that is priced, or as many that are not as are priced
        together."""
        found: list[Family] = []
        stages = 0
        while stages < TOGETHER and (family := self._next()) is not None:
            if family.table is not None and found:
                heappush(self._open, family)
                break
            found.append(family)
            if family.table is not None:
                break
            most = self._most(family) * (self.units.leading + 1)
            stages += int(family.columns.pp[0]) * most
        return found

    def _best_priced(self) -> Family | None:
        """Of those that wait, if it may be better than the best."""
        priced = [one for one in self._open if one.table is not None]
        found = min(priced, default=None)
        if found is None or found.bound >= self._enough:
            return None
        self._open.remove(found)
        heapify(self._open)
        return found

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
            family = Family(
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

    def _price(self, families: Sequence[Family]) -> None:
        """Price the stages of *families*, and bound them by these."""
        self._priced += len(families)
        columns = Columns.concatenate([one.columns for one in families])
        most = [self._most(one) for one in families]
        tables = CutTable.each(self.problem, self.units, columns, most)
        for family, table in zip(families, tables, strict=True):
            family.table = table
            bound = table.bound_s(self.value / self.unit) * self.unit
            family.bound = max(family.bound, bound)
            if (cut := self._pinned(table)) is not None:
                family.bound = max(family.bound, table.bound_of(cut) * self.unit)
            if family.bound < inf:
                heappush(self._open, family)

    def _most(self, family: Family) -> int:
        """Units of a stage, leading ones among them."""
        return min(family.most_units + self.units.leading, self.units.count)

    def _leanest(self, recompute: Array) -> Array:
        """What is made again where least is needed."""
        return recompute

    def _lean(self, columns: Columns) -> Columns:
        """*columns* as they need least."""
        return replace(columns, recompute=self._leanest(columns.recompute))

    def _choice(self, family: Family, cut: Cut) -> Uniform:
        """The family's layout with its layers *cut* so."""
        choice = Space.of(self.problem).choice(family.columns, 0)
        counts = tuple(count * self.units.size for count in cut)
        return replace(choice, layers_per_stage=counts)

    def _try(self, family: Family) -> bool:
        """Simulate cuts of a *family*; whether that were all of them."""
        assert family.table is not None, "it is priced"
        every = self._every(family.table)
        likely = islice(family.table.tried(), self.tries)
        for cut in likely if every is None else every:
            self._judge(family, cut)
            if self.clock.over or family.bound >= self._enough:
                return False
        return every is not None

    def _every(self, table: CutTable) -> list[Cut] | None:
        """The cut that is pinned, or all where there are few; else None."""
        if (pinned := self._pinned(table)) is not None:
            return [pinned] if table.fits(pinned) else []
        units, pp = self.units.count, table.pp
        if comb(units + 1, pp - 1) > FEW:
            return None
        ends = combinations(range(units + 1), pp - 1)  # a stage at an end may be empty
        return [
            tuple(end - start for start, end in pairwise((0, *inner, units)))
            for inner in ends
        ]

    def _pinned(self, table: CutTable) -> Cut | None:
        pinned = Space.of(self.problem).axes.cut(table.pp)
        return pinned and tuple(count // self.units.size for count in pinned)

    def _judge(self, family: Family, cut: Cut) -> bool:
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
        self.best, self.value, self.best_family = found, value, family
        return True


def units_of(problem: Problem) -> Units:
    """Between which layers the model is cut."""
    found = Units.of(problem.job.graph)
    assert found is not None, "they are searched"
    return found


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
