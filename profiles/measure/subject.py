"""What a survey visits again and again: an operator with its passes, or an exchange."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from typing import final

from profiles.measure.clock import Clock
from profiles.measure.collectives import ways
from profiles.measure.kernel import Kernel, Layer
from profiles.measure.kernels import Kernels
from profiles.measure.saved import saved_bytes
from profiles.measure.tasks import FORWARD, Exchange, Operation, Timing
from profiles.measure.work import work
from profiles.units import MS

MOST_CALLS = 64
IN_A_ROW = 5  # repeats of a visit, where that is of use
MESSAGES_IN_A_ROW = 10
SHORT_S = 20 * MS

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
    def most_calls(self) -> int: ...

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
        calls = int(clock.shortest_s / max(shortest_s, 1e-9))
        self.calls = min(max(calls, 1), max(self.most_calls(), 1))
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

    def most_calls(self) -> int:
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
    """A collective over groups, in the midst of what a rank computes (*between*).

    *function* is None where this rank has no part.
    """

    def __init__(
        self,
        exchange: Exchange,
        function: Callable[[], object] | None,
        between: Callable[[], object],
    ) -> None:
        super().__init__()
        self.exchange, self.function, self.between = exchange, function, between

    def visit(self, clock: Clock) -> None:
        super().visit(clock)
        if self.cost_s < SHORT_S:  # messages are uneven, and short ones cost nothing
            for _ in range(MESSAGES_IN_A_ROW - 1):
                super().visit(clock)

    def once(self, clock: Clock, calls: int) -> Seconds:
        seconds = clock.amid(self.function or _nothing, self.between, calls)
        return {FORWARD: seconds / ways(self.exchange.collective)}

    def most_calls(self) -> int:
        return MOST_CALLS

    def timings(self) -> Iterator[tuple[Task, Timing]]:
        if self.function is not None:
            yield self.exchange, Timing(seconds=tuple(self.seen[FORWARD]))


def _nothing() -> None:
    """What a rank does that has no part in a collective."""
