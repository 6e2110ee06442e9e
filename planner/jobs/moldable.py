"""Jobs that run on any of several numbers of GPUs, without a stop: when and where.

    minimise    makespan = max_j end(j)                             → schedule
    subject to  job j runs t_j(g_j) seconds on g_j GPUs             → Moldable
                on a block: whole nodes, or an aligned part of one  → _Machines
                no GPU has two jobs at once

For a target T each job takes the number of GPUs with the least work g · t(g) of those
that end it within T (Turek, Wolf and Yu, SPAA 1992); lists of several orders are placed
one job after the other, each as early as can be. The best over all targets is improved
by simulated annealing: a job moves in the list, or changes its number. Below all of
them lies

    T* = the least T with Σ_j min {g · t_j(g) : t_j(g) ≤ T} ≤ G · T   → lower_bound_s

since within the best makespan every job's time is at most it, and all work fits.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from random import Random
from typing import Final

import numpy as np

MOST_TARGETS: Final = 60
MOST_MOVES: Final = 3000
MOST_PLACED: Final = 100_000  # jobs placed, over all moves
SEED: Final = 1234
EVEN: Final = 0.5
WARM: Final = 0.4  # of the makespan, shared by the jobs
PROVEN: Final = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class Moldable:
    """A job's seconds on each number of GPUs that it can have."""

    name: str
    seconds: Mapping[int, float]
    deadline_s: float = inf
    priority: int = 0

    def least_work(self, within_s: float) -> int | None:
        """The number of GPUs with the least GPU-seconds of those in time."""
        soon = [gpus for gpus, s in self.seconds.items() if s <= within_s]
        return min(soon, key=lambda gpus: gpus * self.seconds[gpus], default=None)

    @property
    def fastest(self) -> int:
        return min(self.seconds, key=self.seconds.__getitem__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Placed:
    """A job on *gpus* GPUs from the *first* on, from *start_s* to *end_s*."""

    job: Moldable
    gpus: int
    first: int
    start_s: float

    @property
    def end_s(self) -> float:
        return self.start_s + self.job.seconds[self.gpus]

    @property
    def late(self) -> bool:
        return self.end_s > self.job.deadline_s * (1 + 1e-9)


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    placed: tuple[Placed, ...]
    lower_s: float

    @property
    def makespan_s(self) -> float:
        return max(one.end_s for one in self.placed)

    @property
    def late(self) -> int:
        return sum(one.late for one in self.placed)

    @property
    def gap(self) -> float:
        return max(0.0, 1 - self.lower_s / self.makespan_s)

    @property
    def value(self) -> tuple[int, float, float]:
        """What is made small: late jobs, then the makespan, then all ends."""
        return self.late, self.makespan_s, sum(one.end_s for one in self.placed)


def lower_bound_s(jobs: Sequence[Moldable], gpus: int) -> float:
    """Seconds that no schedule of *jobs* goes below."""
    least = max(min(job.seconds.values()) for job in jobs)
    times = {s for job in jobs for s in job.seconds.values() if s >= least}
    ends = sorted(times)
    for target, after in zip(ends, [*ends[1:], inf], strict=True):
        chosen = [(job, job.least_work(target)) for job in jobs]
        work = sum(n * job.seconds[n] for job, n in chosen if n is not None)
        if max(target, work / gpus) < after:
            return max(target, work / gpus)
    return least


def schedule(jobs: Sequence[Moldable], gpus: int, node: int) -> Schedule:
    """A good schedule on *gpus* GPUs in nodes of *node*, with its bound."""
    lower_s = lower_bound_s(jobs, gpus)
    best = _ordered(jobs, [job.fastest for job in jobs], gpus, node, lower_s)
    for target in _targets(jobs, lower_s):
        taken = [
            job.least_work(min(target, job.deadline_s)) or job.fastest for job in jobs
        ]
        found = _ordered(jobs, taken, gpus, node, lower_s)
        best = min(best, found, key=lambda one: one.value)
    return _improved(best, gpus, node)


def _targets(jobs: Sequence[Moldable], lower_s: float) -> list[float]:
    """The bound, and times above it, evenly chosen."""
    times = sorted({s for job in jobs for s in job.seconds.values() if s > lower_s})
    step = max(1, -(-len(times) // MOST_TARGETS))
    return [lower_s, *times[::step]]


def _improved(best: Schedule, gpus: int, node: int) -> Schedule:
    """Simulated annealing over the list and the numbers of GPUs, drawn alike each time;
    warm as a part of the makespan at first."""
    draw, now = Random(SEED), best
    pairs = [(one.job, one.gpus) for one in best.placed]
    moves = min(MOST_MOVES, MOST_PLACED // len(pairs))
    for move in range(moves):
        if best.gap < PROVEN and not best.late:
            break
        tried = _moved(pairs, draw)
        found = _listed(tried, gpus, node, best.lower_s)
        warmth = WARM / len(pairs) * best.makespan_s * (1 - move / moves) ** 2
        worse_s = found.makespan_s - now.makespan_s
        keeps = found.late == now.late and worse_s < warmth * draw.expovariate(1)
        if found.value <= now.value or keeps:
            now, pairs = found, tried
        if found.value < best.value:
            best = found
    return best


def _moved(
    pairs: Sequence[tuple[Moldable, int]], draw: Random
) -> list[tuple[Moldable, int]]:
    """One job at another place of the list (among those of its priority), or with
    another number of GPUs."""
    moved, place = list(pairs), draw.randrange(len(pairs))
    job, _ = pairs[place]
    if draw.random() < EVEN:
        moved[place] = job, draw.choice(sorted(job.seconds))
        return moved
    like = [n for n, (one, _) in enumerate(pairs) if one.priority == job.priority]
    moved.insert(draw.choice(like), moved.pop(place))
    return moved


def _orders(job: Moldable, gpus: int) -> tuple[tuple[float, ...], ...]:
    """What a list is sorted by, in several ways: longest, most work, widest first, and
    by deadline."""
    long_s = -job.seconds[gpus]
    work = gpus * long_s
    return ((long_s,), (work,), (-gpus, long_s), (job.deadline_s, long_s))


def _ordered(
    jobs: Sequence[Moldable],
    taken: Sequence[int],
    gpus: int,
    node: int,
    lower_s: float,
) -> Schedule:
    """The best of a few orders, jobs of higher priority first in each."""
    pairs = list(zip(jobs, taken, strict=True))
    found = []
    for number in range(len(_orders(*pairs[0]))):
        keys = [(-job.priority, *_orders(job, n)[number]) for job, n in pairs]
        places = sorted(range(len(pairs)), key=keys.__getitem__)
        order = [pairs[place] for place in places]
        found.append(_listed(order, gpus, node, lower_s))
    return min(found, key=lambda one: one.value)


def _listed(
    pairs: Sequence[tuple[Moldable, int]], gpus: int, node: int, lower_s: float
) -> Schedule:
    """Jobs, each with its number of GPUs, placed in this order."""
    machines = _Machines(gpus, node)
    placed = tuple(machines.place(job, n) for job, n in pairs)
    return Schedule(placed=placed, lower_s=lower_s)


def blocks(wanted: int, gpus: int, node: int) -> Iterator[int]:
    """Where a job on so many GPUs may begin.

    >>> list(blocks(2, 8, 8)), list(blocks(16, 24, 8))
    ([0, 2, 4, 6], [0, 8])
    """
    yield from range(0, gpus - wanted + 1, min(wanted, node))


class _Machines:
    """When each GPU is free."""

    def __init__(self, gpus: int, node: int) -> None:
        self._free = np.zeros(gpus)
        self._node = node

    def place(self, job: Moldable, wanted: int) -> Placed:
        """Put *job* where it starts first, and least is left idle before it."""
        each = min(wanted, self._node)
        whole = len(self._free) // each * each
        ready = self._free[:whole].reshape(-1, each).max(axis=1)
        if wanted > each:
            nodes = wanted // each
            ready = np.lib.stride_tricks.sliding_window_view(ready, nodes).max(axis=1)
        start_s = float(ready.min())
        ties = np.flatnonzero(ready == start_s)
        place = int(ties[0]) * each
        if start_s > 0 and len(ties) > 1:
            busy = [self._free[t * each : t * each + wanted].sum() for t in ties]
            place = int(ties[int(np.argmax(busy))]) * each
        self._free[place : place + wanted] = start_s + job.seconds[wanted]
        return Placed(job=job, gpus=wanted, first=place, start_s=start_s)
