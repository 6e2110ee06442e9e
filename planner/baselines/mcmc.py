"""FlexFlow's search: a random walk that the simulator judges (Jia et al., MLSys 2019).

    propose    one dimension of the candidate changed                       → edits
    accept     with probability min(1, exp(β · (cost − cost*) / cost))      → _accepts
    stop       after the budget, or half of it without an improvement       → _walk

It starts from a heuristic's answer, and each proposal is simulated by *delta*: prices
that the change does not touch are known (`costmodel.known`). A candidate that does not
fit may be walked through, at a cost that grows with what it lacks.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import exp
from random import Random
from typing import ClassVar, Final, final

from costmodel.uniform import Uniform
from planner.baselines.edits import Edits
from planner.baselines.megatron import Megatron
from planner.baselines.recipe import unproven
from planner.problem import Candidate, Problem
from planner.search import AbstractSearch, Clock, Limits
from planner.shortlist import Shortlist
from planner.solution import Counters, Solution
from planner.space import Space
from planner.table import length

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
