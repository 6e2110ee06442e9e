"""`Clock`: how long a thing takes on this device, with all ranks starting together.

Ranks that are more than the cores take turns on them, some milliseconds each. On the
wall, a short piece of work is either done in one turn or put off for several. What a
rank computes is therefore timed by its CPU time, while the others compute too, times
the ranks that share a core.

What a rank computes between two things that are timed: products of matrices.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Final, Protocol

from profiles.measure.timing.collectives import Works, finish
from profiles.measure.timing.operands import Arena
from profiles.measure.timing.tasks import Tensor
from profiles.units import MS

LONG: Final = 512  # 2·512³ FLOPs a product: some 3 ms of a core
SHORT: Final = 288  # some 0.5 ms
PRODUCTS = 2
SHORTEST_S = 2 * MS
# Ranks that share a core take turns of some milliseconds; a repeat outlasts one.
SHORTEST_SHARED_S = 6 * MS
AHEAD_CYCLES: Final = 8_000_000  # of a GPU's clock: some 4 ms
LEAST_S = 1e-6  # of a message, where it cannot be told from what lies before it


def between(arena: Arena, side: int = LONG, turns: float = 1.0) -> Callable[[], object]:
    """A function that multiplies matrices of *side* which no cache holds: fewer, where
    ranks take *turns*, so that it lasts as long."""
    products = max(round(PRODUCTS / turns), 1)

    def compute() -> list[Tensor]:
        return [
            arena.deal(side, side) @ arena.deal(side, side) for _ in range(products)
        ]

    return compute


class Ranks(Protocol):
    """What a clock needs of the other ranks."""

    def barrier(self) -> None: ...

    def largest(self, *values: float) -> tuple[float, ...]:
        """The largest of each value over the ranks."""
        ...


class Clock:
    """Times by the device's own clock, and knows when the budget is spent.

    *own* says that a rank computes on one thread: its work is then timed by its CPU
    time, which is the wall's unless others take the core. *turns* is how many ranks
    share one. A repeat should take *shortest_s* at least.
    """

    def __init__(
        self,
        ranks: Ranks,
        device: str,
        *,
        own: bool,
        budget_s: float,
        turns: float = 1.0,
    ) -> None:
        self.ranks, self.device, self.own = ranks, device, own
        self.turns = turns if own and device == "cpu" else 1.0
        self.shortest_s = SHORTEST_SHARED_S if turns > 1 else SHORTEST_S
        self.start_s = time.perf_counter()
        self.end_s = self.start_s + budget_s

    @property
    def wakes(self) -> bool:
        """Whether a rank sleeps until its message comes: on a CPU."""
        return self.device == "cpu"

    def spent_s(self) -> float:
        """Seconds since the clock was made, as this rank sees it."""
        return time.perf_counter() - self.start_s

    def left_s(self) -> float:
        """What is left of the budget, as all ranks agree."""
        (over_s,) = self.ranks.largest(time.perf_counter() - self.end_s)
        return -over_s

    def timed(self, work: Callable[[], object]) -> float:
        """Seconds of *work* while every rank is at it."""
        return self.turns * self.alone(work)

    def alone(self, work: Callable[[], object]) -> float:
        """Seconds of *work*, begun when every rank is ready, on a core of its own."""
        if self.device == "cuda":
            return self._by_events(work)
        return self._by(time.process_time if self.own else time.perf_counter, work)

    def wall(self, work: Callable[[], object]) -> float:
        """Seconds of *work* that is not this rank's alone: communication."""
        if self.device == "cuda":
            return self._by_events(work)
        return self._by(time.perf_counter, work)

    def amid(
        self,
        begin: Callable[[], Works],
        between: Callable[[], object],
        calls: int,
        beside: Callable[[], object] | None = None,
    ) -> float:
        """Seconds a call of communication, each call after *between*: as in training.

        On a CPU whoever waits for a message sleeps until it is woken, and ranks come to
        it one after the other, the later the more they share cores. What carries a
        message takes turns with what the rank that has its part already computes next,
        for some milliseconds at most: calls in a row, the less apart the faster. What
        is computed *beside* a call fills the waiting. On a GPU's stream nothing comes
        between.
        """
        if not self.wakes:
            return self.wall(lambda: _in_a_row(begin, calls)) / calls
        if self.turns > 1:
            return self._adds(begin, between, calls, beside)
        self.ranks.barrier()
        seconds = 0.0
        for _ in range(calls):
            between()
            started_s = time.perf_counter()
            works = begin()
            own_s = self._own_s(beside)
            finish(works)
            seconds += time.perf_counter() - started_s - own_s
        return max(seconds / calls, LEAST_S)

    def _adds(
        self,
        begin: Callable[[], Works],
        between: Callable[[], object],
        calls: int,
        beside: Callable[[], object] | None,
    ) -> float:
        """What a call adds to what lies between, where ranks take turns.

        Whoever waits for a message waits for ranks that have yet to compute what lies
        between, and the price of that contains it.
        """
        self.ranks.barrier()
        own_s = 0.0
        started_s = time.perf_counter()
        for _ in range(calls):
            own_s += self._own_s(between)
            works = begin()
            own_s += self._own_s(beside)
            finish(works)
        seconds = time.perf_counter() - started_s - self.turns * own_s
        return max(seconds / calls, LEAST_S)

    def _own_s(self, compute: Callable[[], object] | None) -> float:
        """Seconds of this thread in *compute*; those of the threads that carry messages
        are the messages'."""
        if compute is None:
            return 0.0
        now = time.thread_time if self.own else time.perf_counter
        before_s = now()
        compute()
        return now() - before_s

    def _by(self, now: Callable[[], float], work: Callable[[], object]) -> float:
        self.ranks.barrier()
        started_s = now()
        kept = work()
        seconds = now() - started_s
        del kept  # after the clock has stopped
        return seconds

    def _by_events(self, work: Callable[[], object]) -> float:
        """Seconds of *work* on the GPU's stream, which waits until it is queued.

        Else a short kernel would be timed by the Python that issues it: on an H100 27
        us of a product as 57. What a host needs is priced beside it
        (`costmodel.operators.host_overhead`).
        """
        import torch

        before: Any = torch.cuda.Event(enable_timing=True)
        after: Any = torch.cuda.Event(enable_timing=True)
        torch.cuda.synchronize()
        self.ranks.barrier()
        torch.cuda._sleep(AHEAD_CYCLES)
        before.record()
        kept = work()
        after.record()
        after.synchronize()
        del kept
        return float(before.elapsed_time(after)) * MS


def _in_a_row(begin: Callable[[], Works], calls: int) -> None:
    for _ in range(calls):
        finish(begin())
