"""Room on the drive for what a layout keeps there, before any process starts."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from costmodel.layout import NOTHING, Layout
from profiles.files import shown
from profiles.hardware import Cluster, catalog
from profiles.models import Job
from profiles.system import BUCKET_BYTES, default_folder, in_memory, require_room


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
        f"{shown(where)} is in the host's memory: what is there takes no less of it; "
        "name a folder of a drive with --offload-dir DIR"
    )
    return (why,)
