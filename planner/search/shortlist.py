"""`Shortlist`: the best candidate, and the best of those that are not the same.

    split     tp, pp, ep, etp: who holds what of the model
    family    a split with its schedule, ZeRO level, recompute preset, and sequences in
              each pass of all ranks

Two candidates are the same where they split the model alike, and either are of one
family (what is left are shares of dp and cp, virtual stages and groups) or differ in
value by less than `NEGLIGIBLE`. Going through all of them by value, one is
listed if it is not the same as any that is listed. So the list of K is the beginning of
every longer one: what is looked at beyond has a bound above the K-th value.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from heapq import heapify, heappop, heappush
from itertools import count
from math import inf
from typing import Final

from costmodel.layout import Uniform
from costmodel.stages import Known
from planner.problem import Candidate, Problem
from planner.search.frontier import SPLIT
from planner.search.search import Clock

Key = tuple[object, ...]
Raised = Callable[[Sequence[Uniform]], Iterable[float]]  # bounds of some candidates
NEGLIGIBLE: Final = 0.05  # of the value; about what two estimates of a step differ by
TRIED_OF_SPLIT: Final = 3  # simulated to find the best; the first nearly always is
TRIED_IN_VAIN: Final = 5  # of a family, that did not fit
FARTHEST: Final = 2.0  # times the best: beyond, a few that are left have to do
FEWEST: Final = 3


def split(choice: Uniform) -> Key:
    return tuple(getattr(choice, name) for name in SPLIT)


def family(choice: Uniform) -> Key:
    """What people would still call another layout."""
    at_once = choice.dp * choice.micro_batch
    return (*split(choice), choice.schedule, choice.zero, choice.recompute, at_once)


def distinct(problem: Problem, ranked: Iterable[Candidate]) -> list[Candidate]:
    """Of candidates by value those that are not the same as one before."""
    found: list[Candidate] = []
    for one in ranked:
        if not any(_same(problem, other, one) for other in found):
            found.append(one)
    return found


def _same(problem: Problem, listed: Candidate, other: Candidate) -> bool:
    """Whether *other*, which is no better than *listed*, is the same."""
    if _meshes(listed) != _meshes(other):
        return False
    near = problem.value(other) < problem.value(listed) * (1 + NEGLIGIBLE)
    return near or family(listed.choice) == family(other.choice)


def _meshes(candidate: Candidate) -> Key:
    """The split, by what the stages say: a choice tells nothing of unlike ones."""
    meshes = tuple(stage.mesh for stage in candidate.estimate.layout.stages)
    sizes = {(mesh.tp, mesh.ep, mesh.etp, mesh.size) for mesh in meshes}
    return split(candidate.choice) if len(sizes) == 1 else meshes


class Shortlist:
    """The best candidates of *problem* so far; it simulates, and counts how many."""

    def __init__(self, problem: Problem, runners_up: int) -> None:
        self.problem = problem
        self.wanted = runners_up
        self._known = Known()
        self.best: Candidate | None = None
        self._seen: set[Uniform] = set()
        self._kept: dict[Key, Candidate] = {}  # by family
        self._least: dict[Key, float] = {}  # values, by split
        self._tried: Counter[Key] = Counter()
        self._in_vain: Counter[Key] = Counter()
        self._spare: dict[Key, tuple[float, Uniform]] = {}  # by family

    @property
    def simulated(self) -> int:
        """How many candidates were simulated."""
        return len(self._seen)

    @property
    def value(self) -> float:
        """That of the best, infinite if there is none."""
        return inf if self.best is None else self.problem.value(self.best)

    def simulate(self, choice: Uniform) -> Candidate:
        """Simulate a candidate; keep it if it fits and is the best of its family."""
        candidate = self.problem.simulate(choice, self._known)
        self._seen.add(choice)
        if self.problem.fits(candidate):
            self._keep(candidate)
        else:
            self._in_vain[family(choice)] += 1
        return candidate

    def promising(self, choice: Uniform, least: float) -> bool:
        """Whether a candidate that is not below *least* may still change the best of
        its split."""
        key = split(choice)
        if key not in self._least:
            return True
        return self._tried[key] < TRIED_OF_SPLIT and least < self._least[key]

    def is_in_vain(self, choice: Uniform) -> bool:
        """Whether some of its family did not fit, and none of its split does so far."""
        tried = self._in_vain[family(choice)]
        return tried >= TRIED_IN_VAIN and split(choice) not in self._least

    def pass_over(self, choice: Uniform, value: float) -> None:
        """Remember a candidate, whose value is at least *value*, unless one of its
        family is remembered."""
        self._spare.setdefault(family(choice), (value, choice))

    def settled(self, least: float) -> bool:
        """Whether candidates that are not below *least* are no longer of interest."""
        if not self._kept:
            return False
        if not self.wanted:
            return True
        values = sorted(self._least.values())
        if len(values) > self.wanted and values[self.wanted] < least:
            return True
        enough = len(self._kept) + len(self._spare) > FEWEST
        return enough and least > FARTHEST * values[0]

    def runners_up(
        self, clock: Clock, raised: Raised | None = None
    ) -> tuple[Candidate, ...]:
        """The best that are not the same, but the best one, in order; as far as time
        suffices. Those that were passed over are looked at by their bounds, first
        *raised*, where that is given."""
        if raised is not None:
            self._raise(raised)
        found: list[Candidate] = []
        number = count()
        kept = [(*self._rank(one), next(number), one) for one in self._kept.values()]
        spare = [
            (value, 0.0, next(number), choice)
            for value, choice in self._spare.values()
            if choice not in self._seen
        ]
        queue: list[tuple[float, float, int, Candidate | Uniform]] = [*kept, *spare]
        heapify(queue)
        while queue and len(found) <= self.wanted:
            value, _, _, one = heappop(queue)
            if isinstance(one, Candidate):
                if len(distinct(self.problem, [*found, one])) > len(found):
                    found.append(one)
            elif not clock.over and not self._negligible(one, value, found):
                candidate = self.simulate(one)
                if self.problem.fits(candidate):
                    heappush(queue, (*self._rank(candidate), next(number), candidate))
        return tuple(found[1:])

    def _raise(self, raised: Raised) -> None:
        """The bounds of those passed over."""
        values = raised([choice for _, choice in self._spare.values()])
        pairs = zip(self._spare.items(), values, strict=True)
        self._spare = {
            key: (max(value, float(bound)), choice)
            for (key, (value, choice)), bound in pairs
        }

    def _negligible(
        self, choice: Uniform, value: float, found: Iterable[Candidate]
    ) -> bool:
        """Whether *choice*, at its bound, is the same as one of those *found*."""
        alike = (one for one in found if split(one.choice) == split(choice))
        values = (self.problem.value(one) * (1 + NEGLIGIBLE) for one in alike)
        return any(value < least for least in values)

    def _keep(self, candidate: Candidate) -> None:
        choice = candidate.choice
        key, value = split(choice), self.problem.value(candidate)
        self._tried[key] += 1
        self._least[key] = min(value, self._least.get(key, inf))
        old = self._kept.setdefault(family(choice), candidate)
        if self._rank(candidate) < self._rank(old):
            self._kept[family(choice)] = candidate
        if self.best is None or self._rank(candidate) < self._rank(self.best):
            self.best = candidate

    def _rank(self, candidate: Candidate) -> tuple[float, float]:
        """By value; of equal ones that which needs less memory."""
        peak = candidate.estimate.peak_needed_bytes
        return self.problem.value(candidate), peak
