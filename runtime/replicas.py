"""Which ranks hold the same parameters of a stage, and sum their gradients.

The data-parallel ranks; where a schedule has two copies of the model (Chimera), those
of both pipeline ranks that hold the stage. What is sharded is cut over the ranks of one
holder, and the holders sum their shards.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

from costmodel.layout import Layout
from runtime.collectives import Group
from runtime.mesh import Meshes


@dataclass(frozen=True, slots=True, kw_only=True)
class Replicas:
    """The groups of this rank that hold the same of a stage: of its weights and of its
    experts, all of them; of a shard those of the *holders*, where it has several."""

    weights: Group | None = None
    experts: Group | None = None
    holders: Group | None = None

    def named(self) -> dict[str, Group]:
        """Those that there are, by the axis that they speak over."""
        known = {"dp": self.weights, "edp": self.experts, "copies": self.holders}
        return {axis: group for axis, group in known.items() if group is not None}


def replicas(layout: Layout, meshes: Meshes, *, sharded: bool) -> dict[int, Replicas]:
    """This rank's groups, by the stages that it holds; every rank calls this at once.

    Each stage of two copies has groups of its own: two stages of the same ranks are not
    done in one order by both.
    """
    if sharded:
        holders = _groups(layout, meshes.weights, together=False)
        return {stage: Replicas(holders=group) for stage, group in holders.items()}
    weights = _groups(layout, meshes.weights, together=True)
    experts = (
        {} if meshes.experts is None else _groups(layout, meshes.experts, together=True)
    )
    return {
        stage: Replicas(weights=group, experts=experts.get(stage))
        for stage, group in weights.items()
    }


def _groups(
    layout: Layout, mesh: DeviceMesh, *, together: bool
) -> dict[int, Group | None]:
    """By stage, who has the same as this rank: along the second axis of *mesh* and
    over the holders; not *together*, over the holders alone."""
    rank = mesh["pp"].get_local_rank()
    axis = (mesh.mesh_dim_names or ())[1]
    found: dict[int, Group | None] = {}
    for index, stage in enumerate(layout.stages):
        if len(stage.held_by) > 1:
            opened = _across(mesh, sorted(stage.held_by), together=together)
            if opened is not None:
                found[index] = opened
        elif rank in stage.held_by:
            found[index] = mesh[axis].get_group() if together else None
    return found


def _across(mesh: DeviceMesh, holders: list[int], *, together: bool) -> Group | None:
    """Those of *holders* with this rank's part of a tensor; None if it is of none."""
    own: Group | None = None
    held = mesh.mesh[holders].flatten(2)  # (holders, dp, tp); of experts edp, ep × etp
    alike = held.flatten(0, 1) if together else held.flatten(1)
    for part in alike.t().tolist():
        group = dist.new_group(part)
        if dist.get_rank() in part:
            own = group
    return own
