"""A mesh that a stage may have, and what stages of any layers take and hold on it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import gcd, inf
from typing import Final

import numpy as np

from profiles.arrays import Array

EXACT: Final = 1e-12  # sums in another order
ENDLESS: Final = 1e100  # bytes: more than any stage needs
FORWARD, BACKWARD, REDUCE, STEP, GATHER = range(5)  # rows of `Option.least_s`


@dataclass(frozen=True, slots=True)
class Ways:
    """Seconds of a micro-batch to the next stage and back: on the same island, and of
    this side of the link to the next island and of the link from the one before."""

    sent_s: float = 0.0
    crossed_s: float = 0.0
    arrived_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Option:
    """A mesh that a stage may have, with what each layer costs on it: arrays [layers].

    `seconds` are of a forward and backward of a micro-batch. `least_s` [5, layers] are
    what no stage with that layer takes less than: forward, backward, the reduction of
    its gradients, its step and, as far as the next forward does not hide it, the
    gathering of what others updated; a stage with all layers counts `shared_s` [5] once
    and not twice (a tied table). `saved_bytes` are alive for each micro-batch in
    flight, of `working_bytes` a stage has its largest layer's; one with all layers has
    `alone_bytes` less. A stage may lie on the devices from `span[0]` to before
    `span[1]`, of all that there are if None, each of which has `capacity_bytes`.
    Options of one size and span have the same `ways`. Only an option that `starts` may
    hold the first layer, one that `ends` the last.
    """

    devices: int
    seconds: Array
    least_s: Array
    saved_bytes: Array
    state_bytes: Array
    working_bytes: Array
    shared_s: Array = field(default_factory=lambda: np.zeros(5))
    base_bytes: float = 0.0
    alone_bytes: float = 0.0
    capacity_bytes: float = inf
    span: tuple[int, int] | None = None
    ways: Ways = Ways()
    starts: bool = True
    ends: bool = True

    @property
    def both_s(self) -> Array:
        """What a layer's forward and backward take at the least."""
        return np.asarray(self.least_s[FORWARD] + self.least_s[BACKWARD])

    def stages_s(self) -> Array:
        """[5, first, last] → what a stage of those layers takes at the least."""
        found = stages_sums(self.least_s)
        found[:, 0, -1] -= self.shared_s
        return found

    def stages_bytes(self, in_flight: int) -> Array:
        """[first, last] → bytes with so many micro-batches in flight."""
        below = np.tri(len(self.seconds), k=-1, dtype=bool)
        working = np.where(below, 0.0, self.working_bytes)
        found = stages_sums(self.state_bytes + in_flight * self.saved_bytes)
        found += np.maximum.accumulate(working, axis=-1) + self.base_bytes
        found[0, -1] -= self.alone_bytes
        return found

    def of_groups(self, size: int) -> Option:
        """The same of groups of so many neighbouring layers."""
        starts = np.arange(0, len(self.seconds), size)
        return replace(
            self,
            seconds=np.add.reduceat(self.seconds, starts),
            least_s=np.add.reduceat(self.least_s, starts, axis=-1),
            saved_bytes=np.add.reduceat(self.saved_bytes, starts),
            state_bytes=np.add.reduceat(self.state_bytes, starts),
            working_bytes=np.maximum.reduceat(self.working_bytes, starts),
        )


def stages_sums(values: Array) -> Array:
    """[…, first, last] → the sum between; 0 where last is before first."""
    ends = np.cumsum(values, axis=-1)
    return np.triu(ends[..., None, :] - (ends - values)[..., None])


@dataclass(frozen=True, slots=True)
class Kind:
    """Where a mesh of *size* devices may lie: while from *fewest* to *most* devices are
    left to the end of the pipeline, its own among them. In units of the meshes' common
    divisor."""

    size: int
    fewest: int
    most: int
    ways: Ways

    @property
    def left(self) -> slice:
        """The numbers of devices that may be left, its own among them."""
        return slice(self.fewest, self.most + 1)

    @property
    def behind(self) -> slice:
        """The same without its own."""
        return slice(self.fewest - self.size, self.most + 1 - self.size)


class Stages:
    """Every stage that *options* make on so many *devices*, by its kind."""

    def __init__(
        self, options: Sequence[Option], *, devices: int, micro_batches: int
    ) -> None:
        self.options, self.devices = options, devices
        self.micro_batches = micro_batches
        fitting = [one for one in options if one.devices <= devices]
        spans = [end for one in fitting for end in one.span or ()]
        unit = gcd(devices, *spans, *(one.devices for one in fitting))
        self.units, self.layers = devices // unit, len(options[0].seconds)
        self.kinds: dict[Kind, list[int]] = {}
        for number, one in enumerate(options):
            first, end = one.span or (0, devices)
            if one.devices <= min(devices, end - first):
                fewest = (devices - end + one.devices) // unit
                kind = Kind(
                    one.devices // unit, fewest, (devices - first) // unit, one.ways
                )
                self.kinds.setdefault(kind, []).append(number)
        smallest = min((kind.size for kind in self.kinds), default=self.units)
        self.most_stages = min(self.layers, self.units // smallest)

    @cached_property
    def in_flight(self) -> Array:
        """[option, first, last] → micro-batches that a stage may have in flight; −1
        where it does not fit without any, or cannot be."""
        found = np.empty((len(self.options), self.layers, self.layers), dtype=np.int16)
        most = min(self.layers, self.units, self.micro_batches)
        for number, one in enumerate(self.options):
            room = min(one.capacity_bytes, ENDLESS) * (1 + EXACT)
            room_bytes = room - one.stages_bytes(0)
            saved = np.maximum(stages_sums(one.saved_bytes), 1 / ENDLESS)
            found[number] = np.minimum(np.maximum(room_bytes, 0.0) / saved, most)
            found[number, room_bytes < 0] = -1
            if not one.starts:
                found[number, 0] = -1
            if not one.ends:
                found[number, :, -1] = -1
        found[:, np.tri(self.layers, k=-1, dtype=bool)] = -1
        return found

    @cached_property
    def seconds(self) -> Array:
        """[option, first, last] → seconds of a stage, where there is one."""
        return stages_sums(np.array([one.seconds for one in self.options]))

    def fastest(
        self, numbers: Sequence[int], first: int, last: int, in_flight: int
    ) -> int:
        """Of options of those *numbers* the fastest one of which a stage fits."""
        fits = self.in_flight[numbers, first, last] >= in_flight
        seconds = np.where(fits, self.seconds[numbers, first, last], inf)
        return numbers[int(seconds.argmin())]

    def least(self, values: Array, in_flight: int) -> list[Array]:
        """Of each kind [first, last] → the least of *values* [option, first, last] that
        a stage has which fits with so many micro-batches in flight; infinite where none
        does."""
        return [
            np.where(self.in_flight[numbers] >= in_flight, values[numbers], inf).min(
                axis=0
            )
            for numbers in self.kinds.values()
        ]
