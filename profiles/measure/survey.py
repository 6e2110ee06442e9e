"""The survey: everything of a request timed on one rank, in step with the others.

It goes round and round over all subjects until the budget is spent, rather than
staying with each: what disturbs the machine for a while then spoils one repeat of
many samples, and the median of none.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from statistics import median
from typing import Protocol

from profiles.measurable import BESIDE, GAPS, SOON
from profiles.measure.arena import touch_heap
from profiles.measure.between import LONG, SHORT, between
from profiles.measure.calibration import Calibration
from profiles.measure.clock import Clock, Ranks
from profiles.measure.facts import facts
from profiles.measure.groups import Groups
from profiles.measure.kernels import Kernels
from profiles.measure.machine import cores
from profiles.measure.subject import Exchanged, Operated, Subject
from profiles.measure.tasks import Exchange, Operation, Request, Timing

# No message takes longer, as foreseen: a share of the budget, or a second.
LONGEST, LEAST_LONGEST_S = 1 / 40, 1.0
CALIBRATIONS, CALLS = 8, 5  # a round, spread evenly; the fastest of so many counts
GAP_CALLS = 21

Say = Callable[[float, float], None]  # seconds gone, of how many


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What one rank saw, in the order of the request."""

    operations: tuple[Timing, ...]
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
        operations=tuple(timings[one] for one in request.operations),
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
