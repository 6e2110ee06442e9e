"""Layers → stages → devices, by dynamic programming over a pipeline's slowest stage.

    T = Σ (t_i + x_i) + (m − 1) · max over stages of  max(t_i, R_i / s if s < m)

(Zheng et al., OSDI 2022, section 5.2: Alpa's inter-operator pass.) t_i are the seconds
of a stage, x_i of a micro-batch on its way to the next one and back, R_i is the sum
from the stage to the end: with s stages from it to the end, a stage has min(s, m)
micro-batches in flight (1F1B), and waits for one to come back after as many. Of a link
between islands each side counts half of what it takes there, and as two stages take
turns at it, its pace is (t_i + x_i) / 2 at least. For a bound t_max of the slowest
pace, F(s, k, d) is the least sum over s stages that hold the layers from k on and use
the last d devices:

    F(s, k, d) = min over j, mesh of  t(k…j, mesh) + x + F(s − 1, j + 1, d − devices)

It falls as t_max rises, so that few have to be tried (`halve`). Devices are handed out
in model order, so that d says where a stage lies: an option with a span may lie only
there (on its island, say).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, partial
from heapq import heappop, heappush
from math import inf, sqrt

import numpy as np

from planner.heterogeneous.candidates import Kind, Option, Stages
from profiles.arrays import Array

EXACT = 1e-9  # sums in another order
SAME = 1e-8  # thresholds that are closer: more than sums in another order are apart
Reached = tuple[float, float]  # a sum, and the threshold that it needs
Allowed = Callable[[int, Kind, Array, Array], Array]


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A stage: layers from `first` up to `last`, that one too, on an option's mesh."""

    first: int
    last: int
    option: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Partition:
    """Stages in model order; `seconds` is T."""

    parts: tuple[Part, ...]
    seconds: float


def partitions(
    stages: Stages,
    *,
    number: int | None = None,
    tolerance: float = 0.0,
    below_s: float = inf,
) -> list[Partition]:
    """The best partitions for each t_max that was worth a try, best first; of that
    *number* of stages, if it is given.

    The first is optimal up to *tolerance*, a fraction. Empty where nothing fits, or
    nothing takes less than *below_s*.
    """
    if not stages.kinds:
        return []
    m, found = stages.micro_batches, dict[tuple[Part, ...], Partition]()
    fitting = [stages.options[one] for each in stages.kinds.values() for one in each]
    # The slowest stage takes at least what devices do on average, each layer on the
    # mesh that asks least of them.
    used_s = np.min([one.devices * one.seconds for one in fitting], axis=0)
    mean_s = float(used_s.sum()) / stages.devices
    alone_s = np.min([one.seconds for one in fitting], axis=0)
    before_s = np.append(0.0, np.cumsum(alone_s))[:-1, None, None]
    rest_s = below_s - (m - 1) * mean_s - before_s
    kinds = list(stages.kinds)
    every_s = cache(partial(stages.least, stages.seconds))

    def least_sum(t_max: float) -> Reached:
        """Of all partitions with no stage above *t_max*; and what its slowest takes."""

        def allowed(count: int, kind: Kind, rows: Array, sums: Array) -> Array:
            trip_s = count * t_max * (1 + EXACT) if count < m else inf
            found = np.asarray(sums <= np.minimum(trip_s, rest_s))
            place = kinds.index(kind)
            turned_s = every_s(min(count, m))[place][:, rows] / 2
            if count > 1:
                found[:, :, 0] &= turned_s + kind.ways.crossed_s / 2 <= t_max
            if kind.most < stages.units:
                found[:, :, -1] &= turned_s + kind.ways.arrived_s / 2 <= t_max
            return found

        def taken_s(in_flight: int) -> list[Array]:
            return [np.where(one <= t_max, one, inf) for one in every_s(in_flight)]

        least = (inf, inf)
        for cut in cuts(stages, taken_s, allowed, number):
            one = spelled(stages, cut)
            least = min(least, _sum_and_slowest(one.parts, stages.options, m))
            if one.seconds < below_s:
                found[one.parts] = one
        return least

    halve(least_sum, low=mean_s, weight=m - 1, tolerance=tolerance, below=below_s)
    return sorted(found.values(), key=lambda one: one.seconds)


def halve(
    sum_at: Callable[[float], Reached],
    *,
    low: float,
    weight: float,
    tolerance: float,
    below: float,
) -> float:
    """The least of S + *weight* · t for t from *low* > 0 on that is less than *below*,
    up to *tolerance*, a fraction; *below* where there is none. S falls with t.

    *sum_at* is asked for S(t), infinite where there is none, and the t that it needs:
    it is the answer from there on up to t. Between two thresholds that are known
    nothing is less than S of the upper one + *weight* times the lower one: the interval
    where that is least is halved, until none can hold anything better.
    """
    intervals: list[tuple[float, float, float, float]] = []
    best = below

    def ask(start: float, end: float) -> None:
        """What is at *end*, which leaves open what is between *start* and there."""
        nonlocal best
        least, reached = sum_at(end)
        if least < inf:
            best = min(best, least + weight * reached)
            upper = min(reached, end)
            heappush(intervals, (least + weight * start, start, upper, least))

    ask(low, inf)
    while intervals:
        bound, start, end, least = heappop(intervals)
        if bound * (1 + tolerance) >= best * (1 - EXACT):
            break
        if end <= start * (1 + SAME):
            continue
        middle = sqrt(start * end)
        heappush(intervals, (least + weight * middle, middle, end, least))
        ask(start, middle)
    return best


Cut = list[tuple[int, int, int]]  # of each stage the first and last layer and its kind


def cuts(
    stages: Stages,
    taken_s: Callable[[int], Sequence[Array]],
    allowed: Allowed,
    number: int | None = None,
) -> Iterator[Cut]:
    """For each number of stages, or the given one, the cut of least sum, if there is
    one: of what stages take that have so many micro-batches in flight, *taken_s* by
    kind [first, last], and of the ways between them.

    *allowed* is asked of a number of stages, a kind and the last layers of its stages
    which sums [first layer, last layer, `kind.left`] from there to the end may be.
    """
    kinds, layers, units = list(stages.kinds), stages.layers, stages.units
    least = np.full((layers + 1, units + 1), inf)
    least[layers, 0] = 0.0
    tables: list[Array] = []
    for count in range(1, min(stages.most_stages, number or layers) + 1):
        each_s = taken_s(min(count, stages.micro_batches))
        grown, chosen = np.full_like(least, inf), np.zeros(least.shape, dtype=int)
        for place, (kind, one_s) in enumerate(zip(kinds, each_s, strict=True)):
            rest_s = _behind(least, kind, first=count == 1)
            rows = np.flatnonzero(np.isfinite(rest_s).any(axis=1))
            if not len(rows):
                continue
            sums = one_s[:, rows, None] + rest_s[rows]
            sums[~allowed(count, kind, rows, sums)] = inf
            last = sums.argmin(axis=1)
            best = np.take_along_axis(sums, last[:, None], axis=1)[:, 0]
            if kind.most < units:
                best[:, -1] += kind.ways.arrived_s / 2
            there, choice = grown[:-1, kind.left], chosen[:-1, kind.left]
            better = best < there
            there[better] = best[better]
            choice[better] = (place * layers + rows[last])[better]
        least = grown
        tables.append(chosen)
        if number in (None, count) and np.isfinite(least[0, units]):
            yield list(_walk(tables, kinds, layers, units))
        if not np.isfinite(least).any():
            return


def _behind(least: Array, kind: Kind, *, first: bool) -> Array:
    """[last layer, number of `kind.left`] → the least sum behind a stage of *kind*,
    with the way there and back unless that stage is the *first* one from the end."""
    found = least[1:, kind.behind]
    if first:
        return found
    found = found + kind.ways.sent_s
    found[:, 0] += kind.ways.crossed_s / 2 - kind.ways.sent_s
    return found


def _walk(
    tables: Sequence[Array], kinds: Sequence[Kind], layers: int, units: int
) -> Iterator[tuple[int, int, int]]:
    first, left = 0, units
    for chosen in reversed(tables):
        place, last = divmod(int(chosen[first, left]), layers)
        yield first, last, place
        first, left = last + 1, left - kinds[place].size


def spelled(stages: Stages, cut: Cut) -> Partition:
    """*cut* with the fastest option of each kind that fits."""
    m, every = stages.micro_batches, list(stages.kinds.values())
    parts = tuple(
        Part(
            first=first,
            last=last,
            option=stages.fastest(every[kind], first, last, min(behind, m)),
        )
        for behind, (first, last, kind) in zip(range(len(cut), 0, -1), cut, strict=True)
    )
    return Partition(parts=parts, seconds=latency_s(parts, stages.options, m))


def latency_s(
    parts: Sequence[Part], options: Sequence[Option], micro_batches: int
) -> float:
    """T of *parts*."""
    sum_s, slowest_s = _sum_and_slowest(parts, options, micro_batches)
    return sum_s + (micro_batches - 1) * slowest_s


def _sum_and_slowest(
    parts: Sequence[Part], options: Sequence[Option], micro_batches: int
) -> Reached:
    """The two terms of T: a micro-batch there and back, and what the others wait."""
    returned = slowest_s = after_s = 0.0
    after: Option | None = None
    for behind, part in enumerate(reversed(parts), start=1):
        here = options[part.option]
        taken_s = float(here.seconds[part.first : part.last + 1].sum())
        if after is not None and after.span == here.span:
            returned += here.ways.sent_s
        elif after is not None:
            sides = here.ways.crossed_s, after.ways.arrived_s
            returned += sum(sides) / 2
            turns = (taken_s + sides[0]) / 2, (after_s + sides[1]) / 2
            slowest_s = max(slowest_s, *turns)
        returned += taken_s
        slowest_s = max(slowest_s, taken_s)
        if behind < micro_batches:  # else all are sent before one is back
            slowest_s = max(slowest_s, returned / behind)
        after, after_s = here, taken_s
    return returned, slowest_s
