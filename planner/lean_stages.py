"""Stages of any mesh that need the least memory on the fullest device.

    M(s, k, d) = min over j, mesh of
                     max(bytes(k…j, mesh, s), M(s − 1, j + 1, d − devices))

over s stages that hold the layers from k on, on the last d devices: a stage with s from
it to the end holds min(s, m) micro-batches in flight (1F1B). As in `stage_partition`
devices are handed out in model order.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import inf
from typing import Any

import numpy as np
from numpy.typing import NDArray

from planner.stage_kinds import Kind
from planner.stage_layers import Option, unit_of
from planner.stage_partition import Part, Partition, latency_s

Array = NDArray[Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Lean:
    """The partition that needs least, None where none fits, and the bytes of its
    fullest stage: no partition goes below."""

    partition: Partition | None
    peak_bytes: float


def leanest(
    options: Sequence[Option],
    *,
    devices: int,
    micro_batches: int,
    stages: int | None = None,
) -> Lean:
    """The cut of the layers over all *devices* that needs least, of so many *stages* if
    they are given."""
    nothing = Lean(partition=None, peak_bytes=inf)
    if all(option.devices > devices for option in options):
        return nothing
    tables = _Tables.of(options, devices, micro_batches)
    peak_bytes, number = tables.leanest(stages)
    if peak_bytes == inf:
        return nothing
    parts = tuple(tables.walk(number))
    seconds = latency_s(parts, options, micro_batches)
    return Lean(
        partition=Partition(parts=parts, seconds=seconds),
        peak_bytes=peak_bytes,
    )


@dataclass(frozen=True, kw_only=True, eq=False)
class _Tables:
    """[stages to the end − 1][kind] → [first, last] bytes of the leanest option that
    may lie there, and which; M itself by number of stages. Devices in units of the
    meshes' common divisor."""

    bytes: tuple[dict[Kind, tuple[Array, Array]], ...]
    least: list[Array]
    units: int

    @classmethod
    def of(cls, options: Sequence[Option], devices: int, m: int) -> _Tables:
        fitting = [one for one in enumerate(options) if one[1].devices <= devices]
        unit = unit_of(options, devices)
        units, layers = devices // unit, len(options[0].seconds)
        most = min(layers, units)
        held: list[dict[Kind, tuple[Array, Array]]] = []
        for in_flight in range(1, min(most, m) + 1):
            table: dict[Kind, tuple[Array, Array]] = {}
            for number, option in fitting:
                kind = option.kind(devices, unit)
                needed = _bytes(option, in_flight)
                known, which = table.get(kind) or (
                    np.full_like(needed, inf),
                    np.zeros(needed.shape, dtype=int),
                )
                less = needed < known
                table[kind] = (
                    np.where(less, needed, known),
                    np.where(less, number, which),
                )
            held.append(table)
        counts = range(1, most + 1)
        by_stages = tuple(held[min(count, len(held)) - 1] for count in counts)
        none = np.full((layers + 1, units + 1), inf)
        none[layers, 0] = 0.0
        least = [none]
        for table in by_stages:
            least.append(_one_more(table, least[-1]))
        return cls(bytes=by_stages, least=least, units=units)

    def leanest(self, stages: int | None) -> tuple[float, int]:
        """The least of all layers on all devices, and over how many stages; of so many
        *stages* if they are given."""
        found = [
            (float(one[0, self.units]), count)
            for count, one in enumerate(self.least[1:], start=1)
            if stages in (None, count)
        ]
        return min(found, default=(inf, 0))

    def walk(self, stages: int) -> Iterator[Part]:
        """The stages that need least, first to last."""
        first, left = 0, self.units
        for number in range(stages, 0, -1):
            rest, best = self.least[number - 1], (inf, 0, 0, 0)
            for kind, (needed, which) in self.bytes[number - 1].items():
                if not kind.fewest <= left <= kind.most:
                    continue
                peaks = np.maximum(needed[first], rest[1:, left - kind.size])
                last = int(np.argmin(peaks))
                found = (float(peaks[last]), last, int(which[first, last]), kind.size)
                best = min(best, found)
            _, last, option, size = best
            yield Part(first=first, last=last, option=option)
            first, left = last + 1, left - size


def _one_more(table: dict[Kind, tuple[Array, Array]], rest: Array) -> Array:
    """M over one stage more than *rest* is of."""
    found = np.full_like(rest, inf)
    for kind, (needed, _) in table.items():
        if not kind.possible:
            continue
        behind = rest[1:, kind.fewest - kind.size : kind.most - kind.size + 1]
        reached = np.flatnonzero(np.isfinite(behind).any(axis=1))
        if len(reached):
            peaks = np.maximum(needed[:, reached, None], behind[None, reached])
            there = found[:-1, kind.left]
            np.minimum(there, peaks.min(axis=1), out=there)
    return found


def _bytes(option: Option, in_flight: int) -> Array:
    """[first, last] → bytes where a stage may be and fits; infinite elsewhere."""
    held = option.stages_bytes(in_flight)
    fits = np.isfinite(option.stages_s()) & (held <= option.capacity_bytes)
    return np.where(fits, held, inf)
