"""What the ranks of layouts hold at their peaks, and the memory of many at once.

Layouts of one machine, precision, optimizer and offloading are one array of ranks.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from costmodel.machine import Machine
from costmodel.memory import Memory, memory
from costmodel.mesh_parallel import parallel_of
from costmodel.offload import Offload
from profiles.precision import Precision

Array = NDArray[Any]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Peak:
    """What the pipeline ranks of a layout hold; arrays by rank.

    `degrees` are the rows that `mesh_parallel.parallel_of` takes, of each rank;
    `away_bytes` the most activations that are offloaded at once.
    """

    on: Machine
    precision: Precision
    moments: int
    offload: Offload
    degrees: Sequence[tuple[int, ...]]
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
    groups: dict[object, list[int]] = defaultdict(list)
    for number, one in enumerate(peaks):
        key = (id(one.on), one.precision, one.moments, one.offload)
        groups[key].append(number)
    found: dict[int, tuple[Memory, ...]] = {}
    for numbers in groups.values():
        members = [peaks[number] for number in numbers]
        each = iter(_together(members).each())
        for number, one in zip(numbers, members, strict=True):
            found[number] = tuple(islice(each, one.ranks))
    return [found[number] for number in range(len(peaks))]


def _together(peaks: Sequence[Peak]) -> Memory:
    """The memory of all ranks of *peaks*, one layout after another."""
    ranks, first = [one.ranks for one in peaks], peaks[0]

    def by_rank(values: Iterable[int]) -> Array:
        return np.repeat(list(values), ranks)

    def joined(name: str) -> Array:
        return np.concatenate([getattr(one, name) for one in peaks])

    return memory(
        parameters=joined("parameters"),
        gathered_bytes=joined("gathered_bytes"),
        activation_bytes=joined("activation_bytes"),
        transient_bytes=joined("transient_bytes"),
        parallel=parallel_of(np.array([row for one in peaks for row in one.degrees]).T),
        precision=first.precision,
        moments=first.moments,
        device=first.on.device,
        ranks=by_rank(one.gpus for one in peaks),
        fully_shard=first.on.software.fully_shard,
        micro_batches=by_rank(one.micro_batches for one in peaks),
        footprint=first.on.software.footprint,
        frozen_parameters=joined("frozen_parameters"),
        offload=first.offload,
        expert_parameters=joined("expert_parameters"),
    )
