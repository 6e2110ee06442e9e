"""FlexFlow's search: a random walk that the simulator judges (Jia et al., MLSys 2019).

    propose    one dimension of the candidate changed                       → edits
    accept     with probability min(1, exp(β · (cost − cost*) / cost))      → _accepts
    stop       after the budget, or half of it without an improvement       → _walk

It starts from a heuristic's answer, and each proposal is simulated by *delta*: prices
that the change does not touch are known (`costmodel.stages.block_batch`). A candidate
that does not fit may be walked through, at a cost that grows with what it lacks.

One dimension of a candidate changed: what a random walk proposes.

A dimension's options depend on those before it (`axes`): the changed one takes another
of its options, those after it keep theirs where they can, else the nearest one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import exp
from random import Random
from typing import ClassVar, Final, final

import numpy as np

from costmodel.layout import INTEGERS, Columns, Uniform
from costmodel.support import MOST_PASSES
from planner.baselines.recipes import Megatron, unproven
from planner.problem import (
    Candidate,
    Counters,
    Option,
    Problem,
    Solution,
    Space,
    Table,
    length,
)
from planner.search import AbstractSearch, Clock, Limits, Shortlist

Row = dict[str, int]
SHAPE: Final = ("tp", "pp", "cp", "dp")
DIMENSIONS: Final = (
    SHAPE,
    ("ep", "etp"),
    ("micro_batch",),
    ("sequence_parallel",),
    ("cp_kind",),
    ("schedule", "virtual_stages"),
    ("recompute",),
    ("zero", "zero_group"),
)
_NEAR: Final = 0.5  # of the proposals of another shape move between two degrees only


@dataclass(frozen=True, kw_only=True)
class Edits:
    """Proposals in the space of a problem."""

    space: Space

    def random(self, draw: Random) -> Uniform | None:
        """Any candidate, None if no shape of many has one."""
        for _ in range(100):
            found = self._completed({}, SHAPE, draw)
            if found is not None:
                return self._choice(found)
        return None

    def edited(self, choice: Uniform, draw: Random) -> Uniform | None:
        """*choice* with one dimension changed; None where that one has no other
        option, or what is left is no candidate."""
        columns = Columns.of([choice])
        row = {name: int(getattr(columns, name)[0]) for name in INTEGERS}
        found = self._completed(row, draw.choice(DIMENSIONS), draw)
        return None if found is None else self._choice(found)

    def _completed(
        self, row: Row, changed: tuple[str, ...], draw: Random
    ) -> Row | None:
        """*row* with the dimension *changed*, and the others as near as can be."""
        found: Row = {}
        for names in DIMENSIONS:
            old = tuple(row[name] for name in names) if row else None
            options = self._options(names, found)
            if names == changed or old is None:
                picked = _another(options, old, names == SHAPE, draw)
            else:
                picked = _nearest(options, old)
            if picked is None:
                return None
            found |= zip(names, picked, strict=True)
        passes = 2 * found["pp"] * found["virtual_stages"] * self._micro_batches(found)
        return found if passes <= MOST_PASSES else None

    def _options(self, names: tuple[str, ...], row: Row) -> Sequence[Option]:
        axes = self.space.axes
        if names == SHAPE:
            return self._shapes
        tp, pp, cp, dp = (row[name] for name in SHAPE)
        if names == ("ep", "etp"):
            return axes.experts(tp, cp, dp)
        if names == ("micro_batch",):
            return axes.micro_batches(dp)
        if names == ("sequence_parallel",):
            return axes.sequence_parallel(tp, cp)
        if names == ("cp_kind",):
            return axes.cp_kinds(tp, cp)
        if names == ("recompute",):
            return axes.recomputes()
        if names == ("zero", "zero_group"):
            return axes.zeros(*(row[name] for name in self.space.sharded_by))
        return axes.schedules(pp, self._micro_batches(row))

    def _micro_batches(self, row: Row) -> int:
        batch = self.space.problem.job.global_batch
        return batch // row["dp"] // row["micro_batch"]

    @cached_property
    def _shapes(self) -> list[Option]:
        shapes = self.space.degrees
        columns = (shapes[name].tolist() for name in SHAPE)
        return list(zip(*columns, strict=True)) if length(shapes) else []

    def _choice(self, row: Row) -> Uniform:
        table: Table = {name: np.array([row[name]]) for name in INTEGERS if name in row}
        batches = self._micro_batches(row)
        table["micro_batches"] = np.array([batches])
        return self.space.choice(self.space.columns(table), 0)


def _another(
    options: Sequence[Option], old: Option | None, shape: bool, draw: Random
) -> Option | None:
    """A random option but the *old* one; of shapes often one that is near it."""
    others = [one for one in options if one != old]
    if shape and old is not None and draw.random() < _NEAR:
        near = [one for one in others if _differ(one, old) == 2]
        others = near or others
    return draw.choice(others) if others else None


def _nearest(options: Sequence[Option], old: Option) -> Option | None:
    """The option that is nearest to *old*: the same, if it is still one."""

    def apart(one: Option) -> tuple[int, int]:
        far = sum(abs(a - b) for a, b in zip(one, old, strict=True))
        return _differ(one, old), far

    return min(options, key=apart, default=None)


def _differ(one: Option, other: Option) -> int:
    return sum(a != b for a, b in zip(one, other, strict=True))


Cost = Callable[[Uniform], float]
MISFIT: Final = 4.0  # times the value, for each limit's worth of memory too much


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Mcmc(AbstractSearch):
    """`proposals` are the budget, `beta` is how soon the walk turns down what is worse
    (at 20, 5 % worse is accepted in 37 of 100 cases)."""

    name: ClassVar[str] = "mcmc"
    proposals: int = 1000
    beta: float = 20.0
    seed: int = 0

    def solve(self, problem: Problem, limits: Limits) -> Solution:
        clock = Clock(limits=limits)
        shortlist = Shortlist(problem, limits.runners_up)
        edits = Edits(space=Space.of(problem))
        draw = Random(self.seed)
        if clock.over:
            raise clock.out_of_time(0)
        start = self._start(problem, limits, edits, draw)
        if start is not None:
            costs: dict[Uniform, float] = {}

            def cost(choice: Uniform) -> float:
                if choice not in costs:
                    costs[choice] = _cost(problem, shortlist.simulate(choice))
                    clock.tell(shortlist.simulated, shortlist.value, 0.0)
                return costs[choice]

            self._walk(start, edits, draw, cost, clock)
        if shortlist.best is None and clock.over:
            raise clock.out_of_time(shortlist.simulated)
        runners_up = shortlist.runners_up(clock)
        tried = Counters(considered=shortlist.simulated, simulated=shortlist.simulated)
        return unproven(self.name, shortlist, clock, tried, runners_up)

    def _start(
        self, problem: Problem, limits: Limits, edits: Edits, draw: Random
    ) -> Uniform | None:
        """What Megatron's takeaways say, or else any candidate."""
        if not length(edits.space.branches):
            return None
        found = Megatron().solve(problem, replace(limits, runners_up=0, watch=None))
        if found.best is not None:
            return found.best.choice
        return edits.random(draw)

    def _walk(
        self, start: Uniform, edits: Edits, draw: Random, cost: Cost, clock: Clock
    ) -> None:
        """Walk until the budget is spent; *cost* remembers what it is asked for."""
        here, least, idle = start, cost(start), 0
        for _ in range(self.proposals):
            if clock.over or idle > self.proposals // 2:
                return
            idle += 1
            there = edits.edited(here, draw)
            if there is None:
                continue
            if cost(there) < least:
                least, idle = cost(there), 0
            if self._accepts(cost(here), cost(there), draw):
                here = there

    def _accepts(self, old: float, new: float, draw: Random) -> bool:
        return new <= old or draw.random() < exp(self.beta * (old - new) / old)


def _cost(problem: Problem, candidate: Candidate) -> float:
    """Its value, more where it does not fit."""
    limit, peak = problem.memory_limit_bytes, candidate.estimate.peak_secured_bytes
    lack = max(peak / limit - 1, 0.0)
    return problem.value(candidate) * (1 + MISFIT * lack)
