"""Stages of one size that may lie in one place, and the sums behind them.

A programme over stages from the last to the first knows, for each layer and number of
devices to the end, the least sum over the stages from there on. Where a stage is the
last on its island, what it sends goes at the pace of the slower of the two sides, so
that the sums there are kept by the kind that receives.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


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
