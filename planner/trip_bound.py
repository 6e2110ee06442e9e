"""What no pipeline over several places goes below: what is on its way between them, and
how long each stage waits for it.

To cut bounds (`stage_bound`) this adds what 1F1B does with slow links. With w stages
from stage s to the end it sends w micro-batches before the first comes back, so that of
m as many as n = ceil(m / w) go there and back one after another:

    T ≥ Σ_{i<s} (t_i + x_i) + m · t_s
    T ≥ Σ_{i<s} (t_i + x_i) + n · Σ_{i≥s} (t_i + x_i)    for every stage s

where x is the way to the next stage and back (in the sum before s, between places
alone), and stage s holds min(w, m) micro-batches. F(w, k, d), the least Σ (t + x) over
w stages that hold the layers from k on, on the last d devices, grows from the end; for
the sum before them stands the least of any cut of the first k layers on the other
devices.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import gcd, inf

import numpy as np

from planner.stage_bound import halved
from planner.stage_kinds import Growing, Kind, Sums
from planner.stage_partition import Array, Option, stages_sums


def trip_bound_s(
    options: Sequence[Option],
    busy_s: Sequence[Array],
    *,
    devices: int,
    micro_batches: int,
    at_least_s: float = 0.0,
    at_most_s: float,
) -> float:
    """Seconds that no partition takes less than; arguments as `cut_bound_s` has them.
    Options of one size and span cross in the same time."""
    fitting = [
        (option, busy)
        for option, busy in zip(options, busy_s, strict=True)
        if option.devices <= devices
    ]
    if not fitting:
        return at_most_s
    trips = _Trips.of(fitting, devices, micro_batches)
    return halved(trips.possible, at_least_s, at_most_s)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Trips:
    """[micro-batches in flight][kind] → seconds [first, last] of the fastest option
    that fits; and [layers, devices] → the least sum before. Devices in units of the
    meshes' common divisor."""

    seconds: tuple[dict[Kind, Array], ...]
    before: Array
    micro_batches: int

    @classmethod
    def of(
        cls, fitting: Sequence[tuple[Option, Array]], devices: int, micro_batches: int
    ) -> _Trips:
        ends = [end for option, _ in fitting for end in option.span or ()]
        unit = gcd(devices, *ends, *(option.devices for option, _ in fitting))
        units, layers = devices // unit, len(fitting[0][1])
        most = min(layers, units, micro_batches)
        held = range(1, most + 1)
        seconds: tuple[dict[Kind, Array], ...] = tuple({} for _ in held)
        for option, busy in fitting:
            kind = option.kind(devices, unit)
            taken_s, states = option.sums(busy), stages_sums(option.state_bytes)
            saved = stages_sums(option.saved_bytes)
            for in_flight, found in zip(held, seconds, strict=True):
                fits = states + in_flight * saved <= option.capacity_bytes
                known = found.get(kind, inf)
                found[kind] = np.minimum(known, np.where(fits, taken_s, inf))
        return cls(
            seconds=seconds,
            before=_before(seconds[0], layers, units),
            micro_batches=micro_batches,
        )

    def possible(self, most_s: float) -> bool:
        """Whether some partition breaks no bound with *most_s*."""
        layers, units = (size - 1 for size in self.before.shape)
        behind = Sums.of_none(layers, units)
        for stages in range(1, min(layers, units) + 1):
            behind = self._one_more(behind, stages, most_s)
            if np.isfinite(behind.least[0, units]):
                return True
            if not np.isfinite(behind.least).any():
                return False
        return False

    def _one_more(self, behind: Sums, stages: int, most_s: float) -> Sums:
        """The least sums over so many stages, of those over one less."""
        before, growing = self.before[:, ::-1], Growing(behind)
        trips = -(-self.micro_batches // stages)
        for kind, taken_s in self.seconds[min(stages, len(self.seconds)) - 1].items():
            if not kind.possible:
                continue
            rest = behind.behind(kind)
            reached = np.flatnonzero(np.isfinite(rest).any(axis=1))
            if len(reached):
                each = taken_s[:, reached, None]
                early = before[:-1, None, kind.left] + self.micro_batches * each
                sums = np.where(early <= most_s, each + rest[None, reached], inf)
                growing.add(kind, sums.min(axis=1))
        return growing.within((most_s - before) / trips)


def _before(kinds: dict[Kind, Array], layers: int, units: int) -> Array:
    """[layers, devices] → the least sum over stages that hold the first layers on the
    first devices, and are not the last."""
    least = np.full((layers + 1, units + 1), inf)
    least[0, 0] = 0.0
    for first in range(layers):
        for kind, taken_s in kinds.items():
            if not kind.possible:
                continue
            start, end = units - kind.most, units - kind.fewest + kind.size
            reached = least[first, start : end - kind.size + 1]
            sums = reached[None] + taken_s[first, first:, None]
            sums[:-1, -1] += kind.crossed_s
            there = least[first + 1 :, start + kind.size : end + 1]
            np.minimum(there, sums, out=there)
    return least
