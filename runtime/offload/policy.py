"""`StateOffload`: what of a stage's states is away from the device, and who copies it.

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

from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import torch
from torch import nn
from torch.distributed.fsdp import CPUOffloadPolicy, OffloadPolicy

from costmodel.layout import NOTHING, Layout, Offload
from profiles.files import shown
from profiles.hardware import Cluster, catalog
from profiles.models import Job
from profiles.system import BUCKET_BYTES, default_folder, in_memory, require_room
from runtime.offload.disk_optimizer import DiskOptimizer
from runtime.offload.host import HostOptimizer
from runtime.optim import Make, Optimizer, Settings


@dataclass(frozen=True, slots=True, kw_only=True)
class StateOffload:
    """`shards` with all that is made of them, or `masters` of the optimizer's own;
    in a file where `on_drive`, with `gradients` once they are scattered. `passes` fetch
    shards each time, not once a step."""

    shards: bool = False
    masters: bool = False
    on_drive: bool = False
    gradients: bool = False
    passes: bool = False

    @classmethod
    def of(cls, offload: Offload, zero: int) -> StateOffload:
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

    def optimizer(
        self,
        parameters: Iterable[tuple[str, nn.Parameter]],
        settings: Settings,
        device: torch.device,
        *,
        folder: Path | None = None,
        make: Make | None = None,
    ) -> Optimizer:
        """The optimizer of *parameters*, its states where this says: on a drive in a
        file of *folder* (None: that of temporary files)."""
        if self.on_drive:
            return DiskOptimizer(
                parameters,
                settings,
                device,
                folder or default_folder(),
                shards=self.shards,
                gradients=self.gradients,
                make=make,
            )
        if self.masters:
            return HostOptimizer(parameters, settings, device, make)
        return Optimizer(parameters, settings, make)

    def policy(self, device: torch.device) -> OffloadPolicy:
        """The same for `fully_shard`."""
        if not self.shards:
            return OffloadPolicy()
        pinned = device.type == "cuda" and not self.on_drive
        return CPUOffloadPolicy(pin_memory=pinned)


HERE: Final = StateOffload()  # all on the device


def level(zero: int, offload: Offload, *, ranks: int) -> int:
    """How a stage of *ranks* data-parallel ranks is sharded: one rank has nobody to
    share with, but for the host, from where ZeRO-3 fetches its shards."""
    if offload.parameters:
        return 3
    return zero if ranks > 1 else 0


def on_drive(layout: Layout) -> str:
    """What *layout* keeps on a drive, in words; nothing if that is nothing."""
    states = layout.offload.of_states if layout.offload.tier == "nvme" else NOTHING
    saved = any("nvme" in plan.retention.tiers for plan in layout.plans)
    words = [str(states)] if states.states else []
    return ",".join([*words, *(["activations"] if saved else [])])


def needed_bytes(job: Job, layout: Layout, local_ranks: int) -> float:
    """What the files of a machine's *local_ranks* ranks take together, at most; of
    saved tensors a slab more for each stage of a rank, which the last one may begin.

    It hangs on the layout alone, so any device will do.
    """
    from costmodel.simulation import estimate

    island = catalog.cluster(catalog.DEFAULT_CLUSTER).island
    island = replace(island, devices_per_node=local_ranks, levels=island.levels[-1:])
    away = estimate(job, Cluster(name="any", islands=(island,)), layout).away
    saved = any("nvme" in plan.retention.tiers for plan in layout.plans)
    slabs = layout.virtual_stages * local_ranks * BUCKET_BYTES * saved
    return 0.0 if away is None else away.node_bytes + slabs


def require_drive(
    job: Job, layout: Layout, folder: Path | None, *, local_ranks: int
) -> tuple[str, ...]:
    """What to say of the folder that the files go to; nothing where none does.

    Raises Unsupported where they find no room.
    """
    kept = on_drive(layout)
    if not kept:
        return ()
    where = folder or default_folder()
    require_room(
        where,
        needed_bytes(job, layout, local_ranks),
        f"--offload {kept} to nvme",
    )
    if not in_memory(where):
        return ()
    why = (
        f"{shown(where)} is in the host's memory, so offloading to it saves none; name "
        "a folder of a drive with --offload-dir DIR"
    )
    return (why,)
