"""Unlike islands in one run: which ranks run on what, and over which links they meet.

Ranks are handed out island by island, in the order in which the cluster names them. In
synchronous training a group waits for its slowest member: a stage whose ranks lie on
several islands takes as long as on the slowest of their devices, and its collectives
go at the slowest of their links.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from costmodel.layout import Layout, Ranges, layer_text
from costmodel.machine import Machine
from costmodel.stages.stage_cost import StagePrice
from profiles.errors import Unsupported
from profiles.hardware import Cluster, Device, Island, Level


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """The ranks from *first* to *last* that an island has; no last one: all others."""

    first: int
    last: int | None
    island: Island

    def holds(self, ranks: Ranges) -> bool:
        """Whether any of *ranks* is on it."""
        last = self.last
        return any(
            high >= self.first and (last is None or low <= last)
            for low, high in ranks.spans
        )


def spans_of(cluster: Cluster) -> tuple[Span, ...]:
    """Which ranks each island of *cluster* has.

    Raises Unsupported where an island before the last has no number of nodes.
    """
    spans, first = [], 0
    for island in cluster.islands:
        if island.gpus is None and island is not cluster.islands[-1]:
            raise Unsupported(
                f"cluster {cluster.name!r} does not say how many nodes of "
                f"{island.device.name} it has; fill in nodes of every island but the "
                "last"
            )
        last = None if island.gpus is None else first + island.gpus - 1
        spans.append(Span(first=first, last=last, island=island))
        first += island.gpus or 0
    return tuple(spans)


def devices_by_rank(layout: Layout, on: Machine) -> tuple[Device, ...]:
    """The device of each pipeline rank; the smallest of those that it has."""
    if len(on.cluster.islands) == 1:
        return (on.device,) * layout.pp
    spans = spans_of(on.cluster)
    found = []
    for rank in range(layout.pp):
        held = [one.mesh.ranks for one in layout.stages if rank in one.held_by]
        there = [span.island.device for span in spans if any(map(span.holds, held))]
        found.append(min(there, key=lambda device: device.capacity_bytes))
    return tuple(found)


def placed(cluster: Cluster, gpus: int) -> str:
    """Where the ranks of a job of *gpus* are, in words."""
    words = []
    for span in spans_of(cluster):
        if span.first < gpus:
            last = gpus - 1 if span.last is None else min(span.last, gpus - 1)
            words.append(f"ranks {span.first}-{last} on {span.island.device.name}")
    return ", ".join(words)


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where a stage is: its layers and ranks as layout files write them, and which
    devices these are."""

    stage: int
    layers: str
    ranks: str
    devices: tuple[str, ...]


def places_of(layout: Layout, cluster: Cluster) -> tuple[Place, ...]:
    """Which layers run on which devices, where one stage's are unlike another's; empty
    where every stage has its like mesh on one island."""
    meshes = {(one.mesh.tp, one.mesh.cp, one.mesh.dp) for one in layout.stages}
    if len(meshes) == 1 and len(cluster.islands) == 1:
        return ()
    spans = spans_of(cluster)
    return tuple(
        Place(
            stage=number,
            layers=layer_text(stage.layers),
            ranks=str(stage.mesh.ranks),
            devices=tuple(
                dict.fromkeys(
                    span.island.device.name
                    for span in spans
                    if span.holds(stage.mesh.ranks)
                )
            ),
        )
        for number, stage in enumerate(layout.stages)
    )


def machines_of(on: Machine, ranks: Sequence[Ranges]) -> tuple[Machine, ...]:
    """The machines that *ranks* together run on: one for each unlike device among them,
    with the links over which all of them meet."""
    if len(on.cluster.islands) == 1:
        return (on,)
    spans = spans_of(on.cluster)
    here = tuple(
        number
        for number, span in enumerate(spans)
        if any(span.holds(some) for some in ranks)
    )
    if here not in on.among:
        on.among[here] = tuple(_machines(on, [spans[number].island for number in here]))
    return on.among[here]


def slowest(prices: Iterable[StagePrice], micro_batches: int) -> StagePrice:
    """Of one stage priced on several devices, the price on the slowest: the one whose
    passes, reduction and step take the longest."""

    def step_s(price: StagePrice) -> float:
        passes = micro_batches * (price.forward_s + price.backward_s)
        ends = price.reduce_s + price.step_s + price.gather_s
        return float(np.sum(passes + ends))

    return max(prices, key=step_s)


def _machines(on: Machine, islands: Sequence[Island]) -> Iterable[Machine]:
    between = on.cluster.between if len(islands) > 1 else None
    inner = _slowest_level([island.levels[0] for island in islands])
    ends = [island.levels[-1] for island in islands]
    outer = _slowest_level([*ends, *([between] if between is not None else [])])
    domain = min(island.domain for island in islands)
    for island in islands:
        levels = island.levels
        if len(islands) > 1:
            levels = (replace(inner, devices=domain), outer)
        joined = replace(
            island,
            levels=levels,
            nodes=None,
            devices_per_node=min(one.devices_per_node for one in islands),
        )
        name = f"{on.cluster.name}: {island.device.name}"
        yield on.of(replace(on.cluster, name=name, islands=(joined,), between=None))


def _slowest_level(levels: Sequence[Level]) -> Level:
    return min(levels, key=lambda level: level.bytes_per_s)
