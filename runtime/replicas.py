"""Which ranks hold the same parameters of a stage, and sum their gradients.

The data-parallel ranks; where a schedule has two copies of the model (Chimera), those
of both pipeline ranks that hold the stage.
"""

from __future__ import annotations

import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

from costmodel.layout import Layout
from runtime.collectives import Group


def replica_groups(layout: Layout, mesh: DeviceMesh) -> dict[int, Group]:
    """The process group of this rank's replicas, by the stages that it holds.

    Every rank of the job calls this at once. Each stage of two copies has a group of
    its own: two stages of the same ranks are not done in one order by both.
    """
    rank = mesh["pp"].get_local_rank()
    found: dict[int, Group] = {}
    for index, stage in enumerate(layout.stages):
        if len(stage.held_by) > 1:
            group = _across(mesh, sorted(stage.held_by))
            if group is not None:
                found[index] = group
        elif rank in stage.held_by:
            found[index] = mesh["dp"].get_group()
    return found


def _across(mesh: DeviceMesh, holders: list[int]) -> Group | None:
    """Those of *holders* with this rank's part of a tensor; None if it is of none."""
    own: Group | None = None
    held = mesh.mesh[holders]  # (holders, dp, tp)
    for part in held.flatten(0, 1).t().tolist():
        group = dist.new_group(part)
        if dist.get_rank() in part:
            own = group
    return own
