"""A layout over unlike islands: its stages, and what its devices are together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import cached_property

import numpy as np

from costmodel.islands import Span, devices_by_rank, machines_of, slowest, spans_of
from costmodel.layout import Layout
from costmodel.layout_price import LayoutPricer
from costmodel.machine import Machine
from costmodel.ranges import Ranges
from costmodel.stage import StagePrice
from profiles.device import Device


@dataclass(frozen=True, slots=True, kw_only=True)
class Devices:
    """What a job runs on: means over its devices, and what each pipeline rank has."""

    name: str
    peak_flops_per_s: float
    cost: float | None  # dollars for one device and hour
    power_w: float | None
    capacities_bytes: tuple[float, ...]  # of the smallest device of each rank


@dataclass(kw_only=True)
class Placed:
    """A layout's pricer on whatever its ranks are: on one island, or on several."""

    pricer: LayoutPricer

    @cached_property
    def _machines(self) -> list[tuple[Machine, ...]]:
        """What each stage runs on."""
        on, stages = self.pricer.machine, self.pricer.layout.stages
        return [machines_of(on, [stage.mesh.ranks]) for stage in stages]

    @cached_property
    def _alone(self) -> dict[int, LayoutPricer]:
        """The layout as if all of it ran on each of the machines, by their identity."""
        job, layout = self.pricer.job, self.pricer.layout
        distinct = {id(on): on for several in self._machines for on in several}
        return {
            key: LayoutPricer(job=job, layout=layout, machine=on)
            for key, on in distinct.items()
        }

    @property
    def pricers(self) -> list[LayoutPricer]:
        """Those to price (`layout_price.price_together`) before the stages are."""
        if len(self.pricer.machine.cluster.islands) == 1:
            return [self.pricer]
        return list(self._alone.values())

    def columns(self) -> StagePrice:
        """The price of every virtual stage, in model order, as arrays."""
        if len(self.pricer.machine.cluster.islands) == 1:
            return self.pricer.columns()
        rows = []
        for number, machines in enumerate(self._machines):
            here = (self._alone[id(on)].columns() for on in machines)
            prices = [columns.take(np.array([number])) for columns in here]
            rows.append(slowest(prices, self.pricer.layout.micro_batches))
        return StagePrice(
            **{
                item.name: np.concatenate([getattr(row, item.name) for row in rows])
                for item in fields(StagePrice)
            }
        )


def devices_of(layout: Layout, on: Machine) -> Devices:
    """The devices that *layout* runs on."""
    if len(on.cluster.islands) == 1:
        return _alike(on.device, layout)
    number = layout.precision.matmul
    spans = spans_of(on.cluster)
    meshes = {stage.mesh.ranks for stage in layout.stages}
    counts = [_count(span, meshes) for span in spans]
    used = [
        (span.island.device, count)
        for span, count in zip(spans, counts, strict=True)
        if count
    ]
    return Devices(
        name=" + ".join(dict.fromkeys(device.name for device, _ in used)),
        peak_flops_per_s=_mean([(d.peak_flops_per_s(number), n) for d, n in used]),
        cost=_known_mean([(d.cost.si if d.cost else None, n) for d, n in used]),
        power_w=_known_mean([(d.power.si if d.power else None, n) for d, n in used]),
        capacities_bytes=tuple(
            device.capacity_bytes for device in devices_by_rank(layout, on)
        ),
    )


def _alike(device: Device, layout: Layout) -> Devices:
    return Devices(
        name=device.name,
        peak_flops_per_s=device.peak_flops_per_s(layout.precision.matmul),
        cost=device.cost.si if device.cost else None,
        power_w=device.power.si if device.power else None,
        capacities_bytes=(device.capacity_bytes,) * layout.pp,
    )


def _count(span: Span, meshes: set[Ranges]) -> int:
    """How many of the ranks of *meshes* are on an island."""
    count = 0
    for ranks in meshes:
        for first, last in ranks.spans:
            low, high = max(first, span.first), last
            high = high if span.last is None else min(high, span.last)
            count += max(high - low + 1, 0)
    return count


def _mean(parts: Sequence[tuple[float, int]]) -> float:
    if len(parts) == 1:
        return parts[0][0]
    return sum(value * n for value, n in parts) / sum(n for _, n in parts)


def _known_mean(parts: Sequence[tuple[float | None, int]]) -> float | None:
    known = [(value, n) for value, n in parts if value is not None]
    return _mean(known) if len(known) == len(parts) else None
