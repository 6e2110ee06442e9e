"""Branch and bound: columns rank, bounds prune, the simulation judges.

    minimise    value(x)  over the candidates x of the space that fit
    bound(x)  ≤ value(x)                       closed form of a leaf     → floors
    floor(b)  ≤ bound(x)  for x in branch b    without data parallelism  → floors

Best first: the candidate with the least bound is simulated next. Once that bound is
not below the best value found, no candidate that is left can be better: the best is
proven. Every other search with these bounds simulates at least as many.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import ClassVar, final

from planner.problem import (
    EXACT,
    WORTHWHILE,
    Candidate,
    Counters,
    Problem,
    Solution,
    Status,
)
from planner.search.frontier import Frontier
from planner.search.search import AbstractSearch, Clock, Limits
from planner.search.shortlist import Shortlist

FAMILY = ("schedule", "zero", "recompute", "dp", "micro_batch")  # one is remembered
SMALL = 4_000  # candidates: of so few each is looked at


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class BranchAndBound(AbstractSearch):
    """Proves its answer; gives up on the last `tolerance` of the gap only after
    `patience` simulations, and on a proof after `most`; looks for values *below* one
    alone, and raises OutOfTime where it knows of none."""

    name: ClassVar[str] = "branch-and-bound"
    patience: int = 100
    tolerance: float = 0.01
    most: float = inf
    below: float = inf

    def solve(self, problem: Problem, limits: Limits) -> Solution:
        clock = Clock(limits=limits)
        frontier = Frontier(problem, clock)
        shortlist = Shortlist(problem, limits.runners_up)
        lower = self._prove(frontier, shortlist, clock)
        if shortlist.best is None and lower < inf:
            raise clock.out_of_time(frontier.considered)
        if shortlist.best is not None:
            self._look_further(frontier, shortlist, clock)
        runners_up = shortlist.runners_up(clock, frontier.closer)
        best, value = shortlist.best, shortlist.value
        proven = lower >= value * (1 - EXACT)
        status = Status.OPTIMAL if proven else Status.FEASIBLE
        return Solution(
            search=self.name,
            status=status if best else Status.INFEASIBLE,
            best=best,
            value=value,
            lower=value if proven else lower,
            lower_step_time_s=frontier.lower_step_time_s,
            complete=True,  # the frontier bounds all that was not simulated
            counters=_counters(frontier, shortlist.simulated),
            seconds=clock.seconds,
            runners_up=runners_up,
            too_big=_too_big(frontier, best),
        )

    def _prove(self, frontier: Frontier, shortlist: Shortlist, clock: Clock) -> float:
        """Simulate until no candidate that is left can be better; a lower bound."""
        while frontier.least < self._enough(shortlist):
            if self._ends(shortlist, clock) or (choice := frontier.take()) is None:
                break
            shortlist.simulate(choice)
            clock.tell(shortlist.simulated, shortlist.value, frontier.least)
        return min(frontier.least, shortlist.value)

    def _enough(self, shortlist: Shortlist) -> float:
        """The bound at which to stop."""
        tolerance = EXACT if shortlist.simulated < self.patience else self.tolerance
        return min(shortlist.value * (1 - tolerance), self.below)

    def _look_further(
        self, frontier: Frontier, shortlist: Shortlist, clock: Clock
    ) -> None:
        """Find runners-up: what is left of splits that are settled is passed over."""
        small = frontier.considered <= SMALL
        loose = frontier.closer is not None and not small
        if small and shortlist.wanted:
            frontier.open_all()
        while not self._ends(shortlist, clock):
            if shortlist.settled(least := frontier.least):
                break
            choice = frontier.take()
            if choice is None:
                break
            if loose and shortlist.is_in_vain(choice):
                shortlist.pass_over(choice, least)
                continue
            if shortlist.promising(choice, least):
                shortlist.simulate(choice)
                continue
            shortlist.pass_over(choice, least)
            if not small:
                for other, bound in frontier.close(choice, FAMILY):
                    shortlist.pass_over(other, bound)

    def _ends(self, shortlist: Shortlist, clock: Clock) -> bool:
        return clock.over or shortlist.simulated >= self.most


def _counters(frontier: Frontier, simulated: int) -> Counters:
    by_memory = frontier.dropped_for_memory
    return Counters(
        considered=frontier.considered,
        simulated=simulated,
        by_memory=by_memory,
        by_value=frontier.considered - simulated - by_memory,
    )


def _too_big(frontier: Frontier, best: Candidate | None) -> Candidate | None:
    if best is None or frontier.clock.over:
        return None
    wanted_s = best.estimate.step_time_s * WORTHWHILE
    choice = frontier.too_big(wanted_s)
    candidate = None if choice is None else frontier.problem.simulate(choice)
    faster = candidate is not None and candidate.estimate.step_time_s < wanted_s
    return candidate if faster else None
