"""A mesh that a stage may have, and what each layer costs on it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from math import gcd, inf
from typing import Any

import numpy as np
from numpy.typing import NDArray

from planner.stage_kinds import NO_WAYS, Kind, Ways

Array = NDArray[Any]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Option:
    """A mesh that a stage may have, with what each layer costs on it: arrays [layers].

    Seconds are of a forward and backward of a micro-batch; `saved_bytes` are alive for
    each micro-batch in flight, of `working_bytes` a stage has its largest layer's; one
    with all layers has `alone_bytes` less. A
    stage may lie on the devices from `span[0]` to before `span[1]`, of all that there
    are if None, each of which has `capacity_bytes`. What is sent takes its `ways`,
    alike for options of one size and span. Only an option that `starts`
    may hold the first layer, one that `ends` the last.
    """

    devices: int
    seconds: Array
    saved_bytes: Array
    state_bytes: Array
    working_bytes: Array
    base_bytes: float = 0.0
    alone_bytes: float = 0.0
    capacity_bytes: float = inf
    span: tuple[int, int] | None = None
    ways: Ways = NO_WAYS
    starts: bool = True
    ends: bool = True

    def stages_s(self) -> Array:
        """[first, last] → seconds of a stage of those layers; infinite below."""
        return self.sums(self.seconds)

    def kind(self, devices: int, unit: int) -> Kind:
        """Where it may lie on so many *devices*, in units of so many."""
        first, end = self.span or (0, devices)
        return Kind(
            self.devices // unit,
            (devices - end + self.devices) // unit,
            (devices - first) // unit,
            replace(self.ways, domain=self.ways.domain / unit),
        )

    def sums(self, values: Array) -> Array:
        """[first, last] → the sum of *values* between, where a stage may be."""
        found = stages_sums(values)
        if not self.starts:
            found[0] = inf
        if not self.ends:
            found[:, -1] = inf
        return found

    def stages_bytes(self, in_flight: int) -> Array:
        """[first, last] → bytes with so many micro-batches in flight."""
        alive = stages_sums(self.state_bytes + in_flight * self.saved_bytes)
        found = alive + _largest(self.working_bytes) + self.base_bytes
        found[0, -1] -= self.alone_bytes
        return found


def unit_of(options: Iterable[Option], devices: int) -> int:
    """The common divisor of all meshes of up to so many *devices*, and of the ends of
    where they may lie."""
    fitting = [option for option in options if option.devices <= devices]
    ends = [end for option in fitting for end in option.span or ()]
    return gcd(devices, *ends, *(option.devices for option in fitting))


def stages_sums(values: Array) -> Array:
    """[…, first, last] → the sum between; infinite where last is before first."""
    ends = np.cumsum(values, axis=-1)
    found = ends[..., None, :] - (ends - values)[..., None]
    return np.where(_below(values), inf, found)


def _largest(values: Array) -> Array:
    """[…, first, last] → the largest between; 0 where last is before first."""
    wide = np.where(_below(values), 0.0, values[..., None, :])
    return np.maximum.accumulate(wide, axis=-1)


def _below(values: Array) -> Array:
    """[first, last] → whether last is before first."""
    return np.tri(values.shape[-1], k=-1, dtype=bool)
