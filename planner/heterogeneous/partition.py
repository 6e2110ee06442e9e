"""Layers → stages → devices, by dynamic programming over a pipeline's slowest stage.

    T = min over stages of  Σ t_i + (m − 1) · max t_i

(Zheng et al., OSDI 2022, section 5: Alpa's inter-operator pass.) For a bound t_max of
the slowest stage's seconds, F(s, k, d) is the least sum over s stages that hold the
layers from k on and use d devices, none slower than t_max; it falls as t_max rises,
so that few have to be tried (`threshold`):

    F(s, k, d) = min over j, mesh of  t(k…j, mesh, s) + F(s − 1, j + 1, d − devices)

A stage with s stages from it to the end holds min(s, m) micro-batches in flight (1F1B),
so what fits depends on s. Where they are on the way for some time x, that adds to the
sum, and a stage waits for one to come back after each s:

    T = Σ (t_i + x_i) + (m − 1) · max over stages of  max(t_i, R_i / s if s < m)

with R the sum from the stage to the end. Devices are handed out in model order, so
that d says where a stage lies: an option with a span may lie only there (on its island,
say). With m = 1 it is the shortest path through the model; with the sum left out it is
PipeDream's recurrence (min-max), which `slowest` asks for.

The least of a sum that falls as a threshold rises, plus a price of the threshold.

    minimise    S(t) + w · t    where S falls with t

as in `stage_partition`: S is the least sum over stages none of which is slower than t,
t the slowest. What S(t) was found with may be faster than t: then it is the answer from
there on up to t. Between two thresholds that are known nothing is less than S of the
upper one + w times the lower one: the interval where that is least is halved, until
none can hold anything better.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from heapq import heappop, heappush
from math import inf, isfinite, sqrt

import numpy as np

from planner.heterogeneous.candidates import (
    Growing,
    Kind,
    Option,
    Sums,
    leaves,
    stages_sums,
    unit_of,
)
from profiles.arrays import Array

EXACT = 1e-9  # sums in another order
SAME = 1e-8  # thresholds that are closer: more than sums in another order are apart
Reached = tuple[float, float]  # a sum, and the threshold that it needs


def halve(
    sum_at: Callable[[float], Reached],
    *,
    low: float,
    weight: float,
    tolerance: float,
    below: float,
) -> float:
    """The least of S + *weight* · t for t from *low* > 0 on that is less than *below*,
    up to *tolerance*, a fraction; *below* where there is none.

    *sum_at* is asked for S(t), infinite where there is none, and the t that it needs.
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


EXACT = 1e-9  # sums in another order
AT_ONCE = 1_000_000  # stages of several options


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
    options: Sequence[Option],
    *,
    devices: int,
    micro_batches: int,
    capacity_bytes: float = inf,
    stages: int | None = None,
    tolerance: float = 0.0,
    below_s: float = inf,
) -> list[Partition]:
    """The best partitions for each t_max that was worth a try, best first; of so many
    *stages*, if they are given.

    The first is optimal up to *tolerance*, a fraction. Empty where nothing fits, or
    nothing takes less than *below_s*.
    """
    tables = _tables(options, devices, micro_batches, capacity_bytes, stages)
    if tables is None:
        return []
    found: dict[tuple[Part, ...], Partition] = {}

    def least_sum(t_max: float) -> Reached:
        """Of all partitions with no stage above *t_max*; and what its slowest takes."""
        least = (inf, inf)
        for partition in _for_slowest(tables, t_max, below_s):
            if stages not in (None, len(partition.parts)):
                continue
            sum_s, slowest_s = _sum_and_slowest(partition.parts, options, micro_batches)
            least = min(least, (sum_s, slowest_s))
            if partition.seconds < below_s:
                found[partition.parts] = partition
        return least

    halve(
        least_sum,
        low=tables.mean_s,
        weight=micro_batches - 1,
        tolerance=tolerance,
        below=below_s,
    )
    return sorted(found.values(), key=lambda one: one.seconds)


def partitions_among(
    options: Sequence[Option | None],
    *,
    devices: int,
    micro_batches: int,
    stages: int | None = None,
    tolerance: float = 0.0,
    below_s: float = inf,
) -> list[Partition]:
    """The same of those *options* that are there; parts keep their numbers."""
    here = {number: one for number, one in enumerate(options) if one is not None}
    numbers = list(here)
    found = partitions(
        list(here.values()),
        devices=devices,
        micro_batches=micro_batches,
        stages=stages,
        tolerance=tolerance,
        below_s=below_s,
    )
    return [
        replace(
            one,
            parts=tuple(
                replace(part, option=numbers[part.option]) for part in one.parts
            ),
        )
        for one in found
    ]


def slowest(partition: Partition, options: Sequence[Option]) -> float:
    """Seconds of the slowest stage: what PipeDream's recurrence makes small."""
    return max(_seconds(part, options) for part in partition.parts)


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
    returned = slowest_s = 0.0
    ways = reversed(ways_s(parts, options))
    stages = zip(parts[::-1], ways, strict=True)
    for behind, (part, way_s) in enumerate(stages, start=1):
        taken_s = _seconds(part, options)
        returned += taken_s + way_s
        slowest_s = max(slowest_s, taken_s)
        if behind < micro_batches:  # else all are sent before one is back
            slowest_s = max(slowest_s, returned / behind)
    return returned, slowest_s


def ways_s(parts: Sequence[Part], options: Sequence[Option]) -> list[float]:
    """Of a micro-batch from each stage to the next and back; of the last one 0."""
    found: list[float] = []
    after: Option | None = None
    there = 0  # devices behind, on the same island
    for part in reversed(parts):
        option = options[part.option]
        there = there if after and after.span == option.span else 0
        found.append(_way_s(option, after, there) if after else 0.0)
        after, there = option, there + option.devices
    return found[::-1]


def _way_s(option: Option, after: Option, there: int) -> float:
    """Of a micro-batch between two stages and back, of which the second has so many
    devices to the end of its island."""
    if option.span == after.span:
        farther = leaves(there, option.devices, option.ways.domain)
        return option.ways.sent_s + option.ways.far_s * float(farther)
    return max(option.ways.crossed_s, after.ways.arrived_s)


@dataclass(frozen=True, kw_only=True, eq=False)
class _Tables:
    """[stages to the end][kind][first, last] → seconds of the best option, and which.

    `kinds` and `devices` are in units of the meshes' common divisor.
    """

    options: Sequence[Option]
    kinds: tuple[Kind, ...]
    devices: int
    total: int
    micro_batches: int
    seconds: Array
    chosen: Array

    @property
    def most_stages(self) -> int:
        return len(self.seconds)

    @property
    def layers(self) -> int:
        return int(self.seconds.shape[-1])

    @cached_property
    def mean_s(self) -> float:
        """The slowest stage takes at least what devices do on average, each layer on
        the mesh that asks least of them."""
        sizes = np.array([option.devices for option in self.options], dtype=float)
        each = np.array([option.seconds for option in self.options]) * sizes[:, None]
        used = each[sizes <= self.total].min(axis=0)
        return float(used.sum()) / self.total

    def trip_s(self, stages: int, t_max: float) -> float:
        """How long a micro-batch may be on its way through the last *stages* and back:
        a stage waits for it after as many, unless it has sent all before."""
        return inf if stages >= self.micro_batches else stages * t_max * (1 + EXACT)

    @cached_property
    def before_s(self) -> Array:
        """[layers, 1] → no sum over stages that hold the first layers is less."""
        alone = np.array([option.seconds for option in self.options])
        return np.append(0.0, np.cumsum(alone.min(axis=0)))[:, None]


def _tables(
    options: Sequence[Option],
    devices: int,
    micro_batches: int,
    capacity_bytes: float,
    most_stages: int | None,
) -> _Tables | None:
    fitting = [option for option in options if option.devices <= devices]
    if not fitting:
        return None
    unit = unit_of(fitting, devices)
    kinds = {option.kind(devices, unit) for option in fitting}
    order = sorted(kinds, key=lambda kind: (kind.size, kind.fewest))
    layers = len(options[0].seconds)
    most = min(layers, devices // (unit * order[0].size), most_stages or layers)
    shape = (most, len(order), layers, layers)
    seconds, chosen = np.full(shape, inf), np.zeros(shape, dtype=np.int32)
    some = max(AT_ONCE // layers**2, 1)
    for place, kind in enumerate(order):
        numbers = [
            number
            for number, option in enumerate(options)
            if option.devices <= devices and option.kind(devices, unit) == kind
        ]
        for first in range(0, len(numbers), some):
            _put_best(
                seconds[:, place],
                chosen[:, place],
                {number: options[number] for number in numbers[first : first + some]},
                micro_batches,
                capacity_bytes,
            )
    return _Tables(
        options=options,
        kinds=tuple(order),
        devices=devices // unit,
        total=devices,
        micro_batches=micro_batches,
        seconds=seconds,
        chosen=chosen,
    )


def _put_best(
    seconds: Array,
    chosen: Array,
    several: Mapping[int, Option],
    micro_batches: int,
    capacity_bytes: float,
) -> None:
    """Put those of *several* into [stages to the end][first, last] that are faster than
    what is there, and fit."""
    options = list(several.values())
    fixed = np.array([option.stages_bytes(0) for option in options])
    saved = stages_sums(np.array([option.saved_bytes for option in options]))
    taken_s = np.array([option.stages_s() for option in options])
    room = np.array([option.capacity_bytes for option in options])[:, None, None]
    for stages, (known_s, known) in enumerate(zip(seconds, chosen, strict=True)):
        in_flight = min(stages + 1, micro_batches)
        fits = fixed + in_flight * saved <= np.minimum(room, capacity_bytes)
        allowed_s = np.where(fits, taken_s, inf)
        number = np.array(list(several))[allowed_s.argmin(axis=0)]
        least_s = allowed_s.min(axis=0)
        np.copyto(known, number, where=least_s < known_s)
        np.minimum(known_s, least_s, out=known_s)


def _for_slowest(tables: _Tables, t_max: float, below_s: float) -> Iterator[Partition]:
    """For each number of stages the partition of least sum with none above *t_max*, if
    it may take less than *below_s*."""
    layers, devices = tables.layers, tables.devices
    allowed = np.where(tables.seconds <= t_max, tables.seconds, inf)
    sums = [Sums.of_none(layers, devices)]
    rest_s = below_s - (tables.micro_batches - 1) * tables.mean_s
    for stages in range(1, tables.most_stages + 1):
        growing = Growing(sums[-1])
        for place, kind in enumerate(tables.kinds):
            one = allowed[stages - 1, place]
            if not kind.possible or not np.isfinite(one).any():
                continue
            rest = growing.before.behind(kind)
            reached = np.flatnonzero(np.isfinite(rest).any(axis=1))
            if len(reached):
                total = one[:, reached, None] + rest[None, reached, :]
                growing.add(kind, total.min(axis=1))
        trip_s = tables.trip_s(stages, t_max)
        most_s = np.minimum(trip_s, rest_s - tables.before_s)
        sums.append(growing.within(np.broadcast_to(most_s, growing.least.shape)))
        if np.isfinite(sums[-1].least[0, devices]):
            parts = tuple(_walk(tables, allowed, sums, t_max))
            seconds = latency_s(parts, tables.options, tables.micro_batches)
            yield Partition(parts=parts, seconds=seconds)
        elif not np.isfinite(sums[-1].least).any():
            return


def _walk(
    tables: _Tables, allowed: Array, sums: Sequence[Sums], t_max: float
) -> Iterator[Part]:
    """The stages that make the least sum, first to last."""
    first, left, before = 0, tables.devices, None
    for number in range(len(sums) - 1, 0, -1):
        rest, found = sums[number - 1], None
        most_s = tables.trip_s(number, t_max)
        for place, kind in enumerate(tables.kinds):
            if not kind.fewest <= left <= kind.most:
                continue
            behind = rest.behind(kind)[:, left - kind.fewest]
            totals = allowed[number - 1, place, first] + behind
            totals[totals > most_s] = inf
            if before is not None and left == before.fewest - before.size:
                # of another island
                totals += max(before.ways.crossed_s, kind.ways.arrived_s)
            last = int(np.argmin(totals))
            if found is None or totals[last] < found[0]:
                found = (totals[last], place, last)
        assert found is not None, "the sum came from somewhere"
        total_s, place, last = found
        assert isfinite(total_s)
        option = int(tables.chosen[number - 1, place, first, last])
        yield Part(first=first, last=last, option=option)
        before = tables.kinds[place]
        first, left = last + 1, left - before.size


def _seconds(part: Part, options: Sequence[Option]) -> float:
    layers = options[part.option].seconds[part.first : part.last + 1]
    return float(layers.sum())
