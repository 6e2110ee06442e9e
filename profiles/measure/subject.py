"""What a survey visits again and again: an operator with its passes, or an exchange."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from math import inf
from typing import final

from profiles.measure.clock import Clock
from profiles.measure.collectives import Works, ways
from profiles.measure.kernel import Kernel, Layer
from profiles.measure.kernels import Kernels
from profiles.measure.saved import saved_bytes
from profiles.measure.tasks import FORWARD, Exchange, Operation, Timing
from profiles.measure.work import work
from profiles.units import MS

MOST_CALLS = 64
MESSAGES_IN_A_ROW = 8  # that each come after some milliseconds of products
ROW_S = 60 * MS  # a row takes no longer than this, beside what lies between
IN_A_ROW = 5  # repeats of a visit, where that is of use

Task = Operation | Exchange
Seconds = dict[str, float]


class Subject(ABC):
    """Seconds seen so far, by pass; `cost_s` is about what one more visit takes.

    All ranks visit the same subjects in the same order, also those without a part in
    it, since the clock waits for everybody.
    """

    def __init__(self) -> None:
        self.cost_s = 0.0
        self.seen: dict[str, list[float]] = {}
        self.calls = 0

    @abstractmethod
    def once(self, clock: Clock, calls: int) -> Seconds:
        """Seconds a call of each pass."""

    @abstractmethod
    def most_calls(self, clock: Clock) -> int: ...

    def lasts_s(self, clock: Clock) -> float:
        """Seconds that the calls of a visit should take together."""
        return clock.shortest_s

    @abstractmethod
    def timings(self) -> Iterator[tuple[Task, Timing]]: ...

    def wants(self, most_repeats: int) -> bool:
        """Whether one more visit is of use."""
        return len(next(iter(self.seen.values()))) < most_repeats

    def visit(self, clock: Clock) -> None:
        """Time every pass once more; the first visit also finds out how."""
        before_s = clock.left_s()
        if self.calls:
            self._keep(self.once(clock, self.calls))
        else:
            self._first(clock)
        self.cost_s = before_s - clock.left_s()

    def _first(self, clock: Clock) -> None:
        """The first call loads code and finds memory, so it counts only if need be."""
        seconds = self.once(clock, 1)
        if clock.left_s() > 0:
            seconds = self.once(clock, 1)
        (shortest_s,) = clock.ranks.largest(min(seconds.values(), default=0.0))
        calls = int(self.lasts_s(clock) / max(shortest_s, 1e-9))
        self.calls = min(max(calls, 1), max(self.most_calls(clock), 1))
        if self.calls > 1 and clock.left_s() > 0:
            seconds = self.once(clock, self.calls)
        self._keep(seconds)

    def _keep(self, seconds: Seconds) -> None:
        for direction, value in seconds.items():
            self.seen.setdefault(direction, []).append(value)


@final
class Operated(Subject):
    """The passes of one operator at one shape."""

    def __init__(self, operations: Sequence[Operation], kernels: Kernels) -> None:
        super().__init__()
        self.operations, self.kernels = operations, kernels
        self.saved: float | None = None
        self._kernel: Kernel | None = None

    def once(self, clock: Clock, calls: int) -> Seconds:
        if self._kernel is None:
            self._kernel = self.kernels.kernel(self.operations[0])
            if isinstance(self._kernel, Layer):
                self.saved = saved_bytes(self._kernel)
        return self._kernel.visit(clock, calls)

    def wants(self, most_repeats: int) -> bool:
        return self._kernel is not None and super().wants(most_repeats)

    def visit(self, clock: Clock) -> None:
        super().visit(clock)
        if self._kernel is not None and self._kernel.lasting:
            for _ in range(IN_A_ROW - 1):
                super().visit(clock)
            self._kernel = None  # its operands are as large as the model

    def most_calls(self, clock: Clock) -> int:
        room = self.kernels.arena_bytes / (4 * work(self.operations[0])) / 2
        return min(int(room), MOST_CALLS)

    def timings(self) -> Iterator[tuple[Task, Timing]]:
        for operation in self.operations:
            yield (
                operation,
                Timing(
                    seconds=tuple(self.seen[operation.direction]),
                    saved_bytes=self.saved if operation.direction == FORWARD else None,
                ),
            )


@final
class Exchanged(Subject):
    """A collective over groups, in the midst of what a rank computes (*between*), and
    *beside* it.

    *function* begins one, and is None where this rank has no part. What takes more than
    *longest_s*, by the *smaller* message before, is left out on all ranks: over a slow
    link the largest take minutes, and the rate is known by then.
    """

    def __init__(
        self,
        exchange: Exchange,
        function: Callable[[], Works] | None,
        between: Callable[[], object],
        *,
        beside: Callable[[], object] | None = None,
        smaller: Exchanged | None = None,
        longest_s: float = inf,
    ) -> None:
        super().__init__()
        self.exchange, self.function = exchange, function
        self.between, self.beside = between, beside
        self.smaller, self.longest_s = smaller, longest_s
        self.too_long = False

    def wants(self, most_repeats: int) -> bool:
        return not self.too_long and super().wants(most_repeats)

    def visit(self, clock: Clock) -> None:
        if not self.calls and self._foreseen_s(clock) > self.longest_s:
            self.too_long = True
        if not self.too_long:
            super().visit(clock)

    def once(self, clock: Clock, calls: int) -> Seconds:
        begin = self.function or _nothing
        seconds = clock.amid(begin, self.between, calls, self.beside)
        return {FORWARD: seconds / ways(self.exchange.collective)}

    def most_calls(self, clock: Clock) -> int:
        return MESSAGES_IN_A_ROW if clock.wakes else MOST_CALLS

    def lasts_s(self, clock: Clock) -> float:
        return ROW_S if clock.wakes else super().lasts_s(clock)

    def _foreseen_s(self, clock: Clock) -> float:
        """By the rate of the smaller message, as all ranks agree."""
        before = self.smaller
        if before is None:
            return 0.0
        if before.too_long:
            return inf
        more = self.exchange.size_bytes / before.exchange.size_bytes
        more *= ways(self.exchange.collective)
        seen = before.seen[FORWARD] if before.function is not None else [0.0]
        (seconds,) = clock.ranks.largest(more * min(seen))
        return seconds

    def timings(self) -> Iterator[tuple[Task, Timing]]:
        if self.function is not None and not self.too_long:
            yield self.exchange, Timing(seconds=tuple(self.seen[FORWARD]))


def _nothing() -> Works:
    """What a rank does that has no part in a collective."""
    return ()
