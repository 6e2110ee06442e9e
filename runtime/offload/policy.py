"""`StatesAway`: what of a stage's states is away from the device, and who copies it.

optimizer, ZeRO-0      masters, moments and update (`HostOptimizer`); gradients go
                       down at the update
optimizer, ZeRO-1, 2   the shards: they are the masters. `fully_shard` fetches them
                       once a step and sends gradients down as it scatters them
optimizer, ZeRO-3      masters, moments and update; shards stay on the device for
                       the passes, gradients go down as they are scattered
and parameters         ZeRO-3's shards: fetched for each pass, a layer ahead

In the host's memory, or on its drive: then masters (or shards) and moments are in a
file and take memory bucket by bucket (`DiskOptimizer`), and gradients with them from
where they are scattered, from ZeRO-1 on.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import torch
from torch.distributed.fsdp import CPUOffloadPolicy, OffloadPolicy

from costmodel.layout import Offload


@dataclass(frozen=True, slots=True, kw_only=True)
class StatesAway:
    """`shards` with all that is made of them, or `masters` of the optimizer's own;
    in a file where `on_drive`, with `gradients` once they are scattered. `passes` fetch
    shards each time, not once a step."""

    shards: bool = False
    masters: bool = False
    on_drive: bool = False
    gradients: bool = False
    passes: bool = False

    @classmethod
    def of(cls, offload: Offload, zero: int) -> StatesAway:
        """What *offload* means where parameters are sharded as *zero* says."""
        shards = offload.parameters or (offload.optimizer and zero in (1, 2))
        masters = offload.optimizer and not shards
        on_drive = offload.states and offload.tier == "nvme"
        return cls(
            shards=shards,
            masters=masters,
            on_drive=on_drive,
            gradients=on_drive and zero > 0,
            passes=offload.parameters,
        )

    def policy(self, device: torch.device) -> OffloadPolicy:
        """The same for `fully_shard`."""
        if not self.shards:
            return OffloadPolicy()
        pinned = device.type == "cuda" and not self.on_drive
        return CPUOffloadPolicy(pin_memory=pinned)


HERE: Final = StatesAway()  # all on the device


def level(zero: int, offload: Offload, *, ranks: int) -> int:
    """How a stage of *ranks* data-parallel ranks is sharded: one rank has nobody to
    share with, but for the host, from where ZeRO-3 fetches its shards."""
    if offload.parameters:
        return 3
    return zero if ranks > 1 else 0
