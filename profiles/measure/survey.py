"""The survey: everything of a request timed on one rank, in step with the others.

It goes round and round over all subjects until the budget is spent, rather than
staying with each: what disturbs the machine for a while then spoils one repeat of
many samples, and the median of none.

What a survey visits again and again: an operator with its passes, or an exchange.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from math import inf
from statistics import median
from typing import Protocol, final

from profiles.measure.machine import Calibration, cores, facts
from profiles.measure.timing import (
    FORWARD,
    LONG,
    SHORT,
    Clock,
    Exchange,
    Groups,
    Kernel,
    Kernels,
    Layer,
    Operation,
    Ranks,
    Request,
    Timing,
    Works,
    between,
    saved_bytes,
    touch_heap,
    ways,
    work,
)
from profiles.samples import BESIDE, GAPS, SOON
from profiles.units import MS

MOST_CALLS = 64
MOST_QUEUED = 16  # calls that a host issues while a GPU waits (`Clock`)
MESSAGES_IN_A_ROW = 8  # that each come after some milliseconds of products
ROW_S = 60 * MS  # a row takes no longer than this, beside what lies between
IN_A_ROW = 5  # repeats of a visit, where that is of use

Task = Operation | Exchange
Seconds = dict[str, float]
# No message takes longer, as foreseen: a share of the budget, or a second.
LONGEST, LEAST_LONGEST_S = 1 / 40, 1.0
CALIBRATIONS, CALLS = 8, 5  # a round, spread evenly; the fastest of so many counts
GAP_CALLS = 21
Say = Callable[[float, float], None]  # seconds gone, of how many


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
        self.too_large = False
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
        """What a GPU has no room for is left out, as it would be in training."""
        import torch

        try:
            self._visit(clock)
        except torch.OutOfMemoryError:
            self.too_large, self._kernel = True, None
            self.seen.clear()
        if self.too_large:
            torch.cuda.empty_cache()

    def _visit(self, clock: Clock) -> None:
        super().visit(clock)
        if self._kernel is not None and self._kernel.lasting:
            for _ in range(IN_A_ROW - 1):
                super().visit(clock)
            self._kernel = None  # its operands are as large as the model

    def most_calls(self, clock: Clock) -> int:
        room = self.kernels.arena_bytes / (4 * work(self.operations[0])) / 2
        return min(int(room), MOST_CALLS if clock.wakes else MOST_QUEUED)

    def timings(self) -> Iterator[tuple[Task, Timing]]:
        for operation in () if self.too_large else self.operations:
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
        begin = self.function or tuple  # who has no part in it begins nothing
        seconds = clock.amid(begin, self.between, calls, self.beside)
        return {FORWARD: seconds / ways(self.exchange.collective)}

    def most_calls(self, clock: Clock) -> int:
        return MESSAGES_IN_A_ROW if clock.wakes else MOST_QUEUED

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What one rank saw, in the order of the request."""

    operations: tuple[Timing | None, ...]  # None: no room for it
    exchanges: tuple[Timing | None, ...]  # None: no part in it, or too long
    calibrations: tuple[tuple[float, float], ...]  # own seconds, and the wall's
    copy_bytes_per_s: float
    cpu_s: float
    facts: dict[str, str]


class Group(Ranks, Protocol):
    """The ranks of one measurement, and which of them this is."""

    ranks: int
    rank: int


def survey(request: Request, group: Group, say: Say) -> Result:
    """Time all of *request*; a calibration product runs between the samples."""
    clock = Clock(
        group,
        request.device,
        own=request.threads == 1,
        budget_s=request.budget_s,
        turns=max(request.local_ranks / cores(), 1.0),
    )
    local = group.rank % request.local_ranks
    device = f"cuda:{local}" if request.device == "cuda" else "cpu"
    kernels = Kernels(device, request.arena_bytes, request.cache_bytes)
    if request.device == "cpu":
        touch_heap(kernels.arena_bytes)
    subjects = list(_subjects(request, kernels, group, clock.turns))
    product, calibrations = Calibration(device), list[tuple[float, float]]()
    every = max(len(subjects) // CALIBRATIONS, 1)
    for place, subject in enumerate(_rounds(subjects, request, clock)):
        if place % every == 0:
            calibrations.append(_calibration(clock, product))
        subject.visit(clock)
        say(min(clock.spent_s(), request.budget_s), request.budget_s)
    calibrations.append(_calibration(clock, product))
    timings = {key: one for subject in subjects for key, one in subject.timings()}
    return Result(
        operations=tuple(timings.get(one) for one in request.operations),
        exchanges=tuple(timings.get(one) for one in request.exchanges),
        calibrations=tuple(calibrations),
        copy_bytes_per_s=_copy_bytes_per_s(clock, kernels),
        cpu_s=time.process_time(),
        facts={**facts(request), **_gaps(clock, kernels)},
    )


def _subjects(
    request: Request, kernels: Kernels, group: Group, turns: float
) -> Iterator[Subject]:
    together: dict[tuple[object, ...], list[Operation]] = {}
    for one in request.operations:
        apart = one.direction if one.kind == "residual" else ""
        key = (one.kind, one.shape, one.precision, apart)
        together.setdefault(key, []).append(one)
    for operations in together.values():
        yield Operated(operations, kernels)
    groups = Groups(request, group.rank)
    smaller: Exchanged | None = None
    arena, sent = kernels.arena(), kernels.arena(blank=True)
    soon, late = (between(arena, side, turns) for side in (SHORT, LONG))
    for exchange in request.exchanges:
        smaller = Exchanged(
            exchange,
            groups.call(exchange, sent),
            soon if exchange.how in (SOON, BESIDE) else late,
            beside=soon if exchange.how == BESIDE else None,
            smaller=smaller if _goes_on(smaller, exchange) else None,
            longest_s=max(request.budget_s * LONGEST, LEAST_LONGEST_S),
        )
        yield smaller


def _goes_on(smaller: Exchanged | None, exchange: Exchange) -> bool:
    """Whether *exchange* is the one before with more bytes."""
    if smaller is None:
        return False
    before = replace(smaller.exchange, size_bytes=exchange.size_bytes)
    return before == exchange and smaller.exchange.size_bytes < exchange.size_bytes


def _rounds(
    subjects: list[Subject], request: Request, clock: Clock
) -> Iterator[Subject]:
    """Every subject once; then again, as long as there is time for it."""
    yield from subjects
    again = True
    while again:
        again = False
        for subject in subjects:
            if subject.wants(request.most_repeats) and subject.cost_s < clock.left_s():
                again = True
                yield subject


def _calibration(clock: Clock, product: Calibration) -> tuple[float, float]:
    """The product of `Calibration`, on a core of its own and on the wall."""
    own_s = min(clock.alone(product.run) for _ in range(CALLS))
    if clock.turns > 1:  # the wall would say who had the core
        return own_s, own_s
    return own_s, min(clock.wall(product.run) for _ in range(CALLS))


def _gaps(clock: Clock, kernels: Kernels) -> dict[str, str]:
    """How long what lies between messages takes, where ranks wait asleep; nothing where
    the machine was too noisy to tell one from the other."""
    if not clock.wakes:
        return {}
    soon_s, long_s = (
        median(clock.timed(compute) for _ in range(GAP_CALLS))
        for compute in (
            between(kernels.arena(), side, clock.turns) for side in (SHORT, LONG)
        )
    )
    return {GAPS: f"{soon_s:.6g} {long_s:.6g}"} if soon_s < long_s else {}


def _copy_bytes_per_s(clock: Clock, kernels: Kernels) -> float:
    """Bytes read and written a second by a copy that no cache holds."""
    arena = kernels.arena()
    size = arena.block.numel() // 4
    seen = []
    for _ in range(5):
        one, other = arena.deal(size), arena.deal(size)
        seen.append(clock.timed(lambda a=one, b=other: a.copy_(b)))  # type: ignore[misc]
    return 2 * size * arena.block.element_size() / sorted(seen)[2]
