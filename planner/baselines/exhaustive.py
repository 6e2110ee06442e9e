"""Exhaustive search: simulates every legal candidate, whether it fits or not.

The oracle that clever searches are tested against: no bound, no order, no shortcut.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import inf
from typing import ClassVar, final

import numpy as np

from costmodel.layout import Uniform
from planner.problem import (
    WORTHWHILE,
    Candidate,
    Counters,
    Problem,
    Solution,
    Space,
    Status,
    length,
    take,
)
from planner.search import AbstractSearch, Clock, Limits, Shortlist

BATCH = 1024  # branches spelled out at a time
_Seen = tuple[float, float, Uniform]  # peak bytes, step seconds


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Exhaustive(AbstractSearch):
    """Without bounds, what it says is proven only once it has seen everything."""

    name: ClassVar[str] = "exhaustive"

    def solve(self, problem: Problem, limits: Limits) -> Solution:
        clock = Clock(limits=limits)
        space = Space.of(problem)
        considered = int(space.branches["leaves"].sum())
        shortlist = Shortlist(problem, limits.runners_up)
        seen: list[_Seen] = []
        for choice in _choices(space):
            if clock.over:
                break
            found = shortlist.simulate(choice).estimate
            seen.append((found.peak_secured_bytes, found.step_time_s, choice))
            clock.tell(shortlist.simulated, shortlist.value, 0.0)
        complete = shortlist.simulated == considered
        best, value = shortlist.best, shortlist.value
        if best is None and not complete:
            raise clock.out_of_time(considered)
        status = Status.OPTIMAL if complete else Status.FEASIBLE
        return Solution(
            search=self.name,
            status=status if best else Status.INFEASIBLE,
            best=best,
            value=value,
            lower=value if complete else 0.0,
            lower_step_time_s=(
                min((item[1] for item in seen), default=inf) if complete else 0.0
            ),
            complete=complete,
            counters=Counters(considered=considered, simulated=shortlist.simulated),
            seconds=clock.seconds,
            runners_up=shortlist.runners_up(clock),
            too_big=_too_big(problem, best, seen),
        )


def _too_big(
    problem: Problem, best: Candidate | None, seen: list[_Seen]
) -> Candidate | None:
    if best is None:
        return None
    wanted_s = best.estimate.step_time_s * WORTHWHILE
    limit = problem.memory_limit_bytes
    lost = [item for item in seen if item[0] > limit and item[1] < wanted_s]
    smallest = min(lost, key=lambda item: item[:2], default=None)
    return None if smallest is None else problem.simulate(smallest[2])


def _choices(space: Space) -> Iterator[Uniform]:
    """Every candidate, a batch of branches spelled out at a time."""
    branches = space.branches
    for start in range(0, length(branches), BATCH):
        rows = np.arange(start, min(start + BATCH, length(branches)))
        leaves = space.leaves(take(branches, rows))
        yield from (space.choice(leaves, row) for row in range(len(leaves)))
