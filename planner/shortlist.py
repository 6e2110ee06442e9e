"""`Shortlist`: the best candidate, and runners-up that differ in more than details.

One candidate for each set of degrees (tp, pp, dp, cp, ep). Only where there are too few
of those do others of the same degrees follow: first ones with another schedule, ZeRO
level or recompute preset, then any.
"""

from __future__ import annotations

from collections import Counter
from math import inf

from costmodel.known import Known
from costmodel.uniform import Uniform
from planner.frontier import DEGREES
from planner.problem import Candidate, Problem
from planner.search import Clock

Key = tuple[object, ...]
TRIED_OF_DEGREES = 3  # simulated to find the best; the first nearly always is
FARTHEST = (
    2.0  # times the best: others of the same degrees are nearer, if there are any
)
FEWEST = 3
SPARE = 500  # others remembered, to fill up with


def degrees(choice: Uniform) -> Key:
    return tuple(getattr(choice, name) for name in DEGREES)


def family(choice: Uniform) -> Key:
    """What people would still call another layout."""
    pipeline = (choice.schedule, choice.virtual_stages)
    return (*degrees(choice), *pipeline, choice.zero, choice.recompute)


def exactly(choice: Uniform) -> Key:
    return (choice,)


class Shortlist:
    """The best candidates of *problem* so far; it simulates, and counts how many."""

    def __init__(self, problem: Problem, runners_up: int) -> None:
        self.problem = problem
        self.wanted = runners_up
        self._known = Known()
        self.best: Candidate | None = None
        self._seen: set[Uniform] = set()
        self._kept: dict[Key, Candidate] = {}
        self._tried: Counter[Key] = Counter()
        self._spare: dict[Uniform, float] = {}

    @property
    def simulated(self) -> int:
        """How many candidates were simulated."""
        return len(self._seen)

    @property
    def value(self) -> float:
        """That of the best, infinite if there is none."""
        return inf if self.best is None else self.problem.value(self.best)

    def simulate(self, choice: Uniform) -> Candidate:
        """Simulate a candidate; keep it if it fits and is the best of its degrees."""
        candidate = self.problem.simulate(choice, self._known)
        self._seen.add(choice)
        if self.problem.fits(candidate):
            self._keep(candidate)
        return candidate

    def promising(self, choice: Uniform, least: float) -> bool:
        """Whether a candidate that is not below *least* may still change the list."""
        key = degrees(choice)
        old = self._kept.get(key)
        if old is None:
            return True
        tried_enough = self._tried[key] >= TRIED_OF_DEGREES
        return not tried_enough and least < self.problem.value(old)

    def pass_over(self, choice: Uniform, value: float) -> None:
        """Remember a candidate, whose value is at least *value*, to fill up with."""
        self._spare[choice] = value
        if len(self._spare) > 2 * SPARE:
            nearest = sorted(self._spare.items(), key=lambda item: item[1])
            self._spare = dict(nearest[:SPARE])

    def settled(self, least: float) -> bool:
        """Whether candidates that are not below *least* are no longer of interest."""
        values = sorted(self.problem.value(one) for one in self._kept.values())
        if len(values) > self.wanted and values[self.wanted] <= least:
            return True
        named = min(FEWEST, self.wanted)
        enough = len(values) + len(self._spare) > named
        return bool(values) and enough and least > FARTHEST * values[0]

    def runners_up(self, clock: Clock) -> tuple[Candidate, ...]:
        """All but the best, in order; of lesser interest where there are too few, as
        far as time suffices."""
        found = sorted(self._kept.values(), key=self._rank)[: self.wanted + 1]
        spare = sorted(self._spare, key=lambda choice: self._spare[choice])
        for key in (family, exactly):
            seen = {key(one.choice) for one in found}
            for choice in spare:
                if len(found) > self.wanted or clock.over:
                    break
                if key(choice) not in seen:
                    seen.add(key(choice))
                    self._fill(found, choice)
        return tuple(sorted(found, key=self._rank)[1:])

    def _fill(self, found: list[Candidate], choice: Uniform) -> None:
        candidate = self.problem.simulate(choice, self._known)
        self._seen.add(choice)
        if self.problem.fits(candidate):
            found.append(candidate)

    def _keep(self, candidate: Candidate) -> None:
        key = degrees(candidate.choice)
        self._tried[key] += 1
        old = self._kept.get(key, candidate)
        better, worse = sorted((candidate, old), key=self._rank)
        self._kept[key] = better
        if worse is not better:
            self.pass_over(worse.choice, self.problem.value(worse))
        if self.best is None or self._rank(better) < self._rank(self.best):
            self.best = better

    def _rank(self, candidate: Candidate) -> tuple[float, float]:
        """By value; of equal ones that which needs less memory."""
        peak = candidate.estimate.peak_needed_bytes
        return self.problem.value(candidate), peak
