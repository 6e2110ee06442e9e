"""Room on the drive for states that a layout keeps there, before any process starts."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from costmodel.layout import Layout
from profiles import catalog
from profiles.cluster import Cluster
from profiles.documents import shown
from profiles.drive import default_folder, in_memory, require_room
from profiles.job import Job


def on_drive(layout: Layout) -> bool:
    """Whether *layout* keeps states on a drive."""
    return layout.offload.states and layout.offload.tier == "nvme"


def needed_bytes(job: Job, layout: Layout, local_ranks: int) -> float:
    """What the files of a machine's *local_ranks* ranks take together, at most.

    It hangs on the layout alone, so any device will do.
    """
    from costmodel.estimate import estimate

    island = catalog.cluster(catalog.DEFAULT_CLUSTER).island
    island = replace(island, devices_per_node=local_ranks, levels=island.levels[-1:])
    away = estimate(job, Cluster(name="any", islands=(island,)), layout).away
    return 0.0 if away is None else away.node_bytes


def require_drive(
    job: Job, layout: Layout, folder: Path | None, *, local_ranks: int
) -> tuple[str, ...]:
    """What to say of the folder that the files go to; nothing where none does.

    Raises Unsupported where they find no room.
    """
    if not on_drive(layout):
        return ()
    where = folder or default_folder()
    require_room(
        where,
        needed_bytes(job, layout, local_ranks),
        f"--offload {layout.offload.of_states} to nvme",
    )
    if not in_memory(where):
        return ()
    why = (
        f"{shown(where)} is in the host's memory: states there take no less of it; "
        "name a folder of a drive with --offload-dir DIR"
    )
    return (why,)
