"""What the ranks of layouts hold at their peaks, and the memory of many at once.

Layouts of one machine, precision, optimizer and offloading are one array of ranks;
over unlike islands, one for each device.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields

import numpy as np

from costmodel.layout import Offload
from costmodel.machine import Machine
from costmodel.stages.data_parallelism import DataParallel
from costmodel.stages.device_memory import (
    Memory,
    PeakContents,
    Process,
    StatePolicy,
    memory,
)
from profiles.arrays import Array
from profiles.hardware import Device, Precision


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Peak:
    """What the pipeline ranks of a layout hold; arrays by rank.

    `away_bytes` are the most activations that are offloaded at once.
    """

    on: Machine
    devices: Sequence[Device]
    precision: Precision
    moments: int
    offload: Offload
    parallel: Sequence[DataParallel]  # of each rank, as numbers
    gpus: int
    micro_batches: int
    parameters: Array
    expert_parameters: Array
    frozen_parameters: Array
    gathered_bytes: Array
    activation_bytes: Array
    transient_bytes: Array
    away_bytes: Array

    @property
    def ranks(self) -> int:
        return len(self.parameters)


def memories(peaks: Sequence[Peak]) -> list[tuple[Memory, ...]]:
    """Of each layout, each pipeline rank's bytes at its peak."""
    groups: dict[object, list[tuple[int, Device]]] = defaultdict(list)
    for number, one in enumerate(peaks):
        for device in {id(device): device for device in one.devices}.values():
            kind = one.precision, one.moments, one.offload
            groups[id(one.on), id(device), kind].append((number, device))
    found: list[list[Memory | None]] = [[None] * one.ranks for one in peaks]
    for members in groups.values():
        together = [peaks[number] for number, _ in members]
        each = iter(_together(together, members[0][1]).each())
        for number, device in members:
            for rank, own in enumerate(peaks[number].devices):
                here = next(each)
                if own is device:
                    found[number][rank] = here
    return [tuple(one for one in each if one is not None) for each in found]


def _together(peaks: Sequence[Peak], device: Device) -> Memory:
    """The memory of all ranks of *peaks*, one layout after another, on a *device*."""
    ranks, first = [one.ranks for one in peaks], peaks[0]

    def by_rank(values: Iterable[int]) -> Array:
        return np.repeat(list(values), ranks)

    def joined(name: str) -> Array:
        return np.concatenate([getattr(one, name) for one in peaks])

    return memory(
        PeakContents(**{item.name: joined(item.name) for item in fields(PeakContents)}),
        policy=StatePolicy(
            precision=first.precision, moments=first.moments, offload=first.offload
        ),
        process=Process(
            device=device,
            ranks=by_rank(one.gpus for one in peaks),
            fully_shard=first.on.software.fully_shard,
            footprint=first.on.software.footprint,
        ),
        parallel=DataParallel.of([rank for one in peaks for rank in one.parallel]),
        micro_batches=by_rank(one.micro_batches for one in peaks),
    )
