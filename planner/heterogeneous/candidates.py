"""A mesh that a stage may have, and what each layer costs on it.

Stages of one size that may lie in one place, and the sums behind them.

A programme over stages from the last to the first knows, for each layer and number of
devices to the end, the least sum over the stages from there on. Where a stage is the
last on its island, what it sends goes at the pace of the slower of the two sides, so
that the sums there are kept by the kind that receives.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from math import gcd, inf
from typing import Any, Final

import numpy as np

from profiles.arrays import Array


@dataclass(frozen=True, slots=True)
class Ways:
    """How long a micro-batch is on its way to the next stage and back: for `sent_s`,
    in a domain of so many devices for `far_s` more where whichever stage leaves that,
    for `away_s` in all where this one does; for `crossed_s` where the next stage lies
    on another island, `arrived_s` where the one before does."""

    sent_s: float = 0.0
    crossed_s: float = 0.0
    arrived_s: float = 0.0
    far_s: float = 0.0
    away_s: float = 0.0
    domain: float = inf


NO_WAYS: Final = Ways()


@dataclass(frozen=True, slots=True)
class Kind:
    """A mesh of *size* devices, which a stage may have while from *fewest* to *most*
    devices are left, its own among them; the domain of its *ways* counts in their
    units."""

    size: int
    fewest: int
    most: int
    ways: Ways = NO_WAYS

    @property
    def possible(self) -> bool:
        """Whether it lies anywhere."""
        return self.fewest <= self.most

    @property
    def sent_by_left(self) -> Array:
        """Of each number of `left` the way to the next stage of the island and back."""
        behind = np.arange(self.most - self.fewest + 1)
        farther = leaves(behind, self.size, self.ways.domain)
        return np.asarray(self.ways.sent_s + self.ways.far_s * farther)

    @property
    def left(self) -> slice:
        """The numbers of devices that may be left, its own among them."""
        return slice(self.fewest, self.most + 1)


def leaves(behind: Any, size: int, domain: float) -> Any:
    """Whether a stage of *size* devices and so many *behind* it on its island, if there
    are any, lie in one domain more than those: however stages are placed, a pipeline
    leaves a domain as often as there are others to be in."""
    more = np.ceil((behind + size) / domain) > np.ceil(behind / domain)
    return more & (np.asarray(behind) > 0)


@dataclass(frozen=True, slots=True, eq=False)
class Sums:
    """[first layer, devices to the end] → the least sum over some number of stages;
    the same by the kind of the first of them, where that begins an island."""

    least: Array
    gates: dict[Kind, Array]  # [first layer]
    ends: bool = False  # over no stages: nothing is sent there

    @classmethod
    def of_none(cls, layers: int, devices: int) -> Sums:
        """Of no stages: no layers on no devices."""
        least = np.full((layers + 1, devices + 1), inf)
        least[layers, 0] = 0.0
        return cls(least, {}, ends=True)

    def behind(self, kind: Kind) -> Array:
        """[last layer, number of `kind.left`] → the sum behind a stage of *kind*, with
        the way there and back if there is a stage."""
        found = self.least[1:, kind.fewest - kind.size : kind.most + 1 - kind.size]
        if self.ends:
            return found
        found = found + kind.sent_by_left
        found[:, 0] = inf
        for one, sums in self.gates.items():
            if one.most == kind.fewest - kind.size:
                sent_s = max(kind.ways.crossed_s, one.ways.arrived_s)
                found[:, 0] = np.minimum(found[:, 0], sums[1:] + sent_s)
        return found


class Growing:
    """The sums over one more stage, as they are found kind by kind."""

    def __init__(self, before: Sums) -> None:
        self.before = before
        self.least = np.full_like(before.least, inf)
        self.gates: dict[Kind, Array] = {}

    def add(self, kind: Kind, sums: Array) -> None:
        """*sums* [first layer, number of `kind.left`] with a first stage of *kind*."""
        there = self.least[:-1, kind.left]
        np.minimum(there, sums, out=there)
        if kind.most < self.least.shape[1] - 1:
            gate = np.append(sums[:, -1], inf)
            self.gates[kind] = np.minimum(self.gates.get(kind, inf), gate)

    def within(self, most: Array) -> Sums:
        """What was found and is at *most* so much [first layer, devices to the end]."""
        gates = {
            kind: np.where(sums > most[:, kind.most], inf, sums)
            for kind, sums in self.gates.items()
        }
        return Sums(np.where(self.least > most, inf, self.least), gates)


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
