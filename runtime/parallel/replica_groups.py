"""Which ranks hold the same parameters of a stage, and sum their gradients.

The data-parallel ranks; where a schedule has two copies of the model (Chimera), those
of both pipeline ranks that hold the stage. What is sharded is cut over ranks of one
holder; whoever has the same shard, in replicas of shards and on other holders, sums it
(`runtime.parallel.fsdp`), where `fully_shard` does not.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

from costmodel.layout import Layout, sums_shards_last
from runtime.parallel.collectives import Group
from runtime.parallel.mesh import Meshes


@dataclass(frozen=True, slots=True, kw_only=True)
class Replicas:
    """This rank's groups that hold the same of a stage, of its weights and of its
    experts: whole, or where it is *sharded* the same shards; None where it is alone, or
    where `fully_shard` sums them."""

    weights: Group | None = None
    experts: Group | None = None
    sharded: bool = False

    def named(self) -> Iterator[tuple[str, Group]]:
        """Those that there are, with the axis that they speak over."""
        axes = ("copies", "copies") if self.sharded else ("dp", "edp")
        for axis, group in zip(axes, (self.weights, self.experts), strict=True):
            if group is not None:
                yield axis, group


def replicas(layout: Layout, meshes: Meshes, *, zero: int) -> dict[int, Replicas]:
    """This rank's groups, by the stages that it holds, which are sharded as *zero*
    says; every rank calls this at once.

    Each stage of two copies has groups of its own: two stages of the same ranks are not
    done in one order by both.
    """
    weights = _groups(layout, meshes.weights, meshes.shards, zero)
    experts: dict[int, Group | None] = {}
    if meshes.experts is not None and meshes.expert_shards is not None:
        experts = _groups(layout, meshes.experts, meshes.expert_shards, zero)
    return {
        stage: Replicas(weights=group, experts=experts.get(stage), sharded=zero > 0)
        for stage, group in weights.items()
    }


def one_axis(shards: DeviceMesh) -> DeviceMesh:
    """Of replicas of shards × shards, the axis of the shards alone."""
    names = shards.mesh_dim_names or ()
    return shards[names[-1]] if shards.ndim > 1 else shards


def _groups(
    layout: Layout, mesh: DeviceMesh, shards: DeviceMesh, zero: int
) -> dict[int, Group | None]:
    """By stage, who has the same as this rank: along the second axis of *mesh*, which
    is cut as *shards*, and over the holders."""
    rank = mesh["pp"].get_local_rank()
    found: dict[int, Group | None] = {}
    for index, stage in enumerate(layout.stages):
        if len(stage.held_by) > 1:
            cut = shards.size(-1) if zero else 1
            opened = _across(mesh, sorted(stage.held_by), cut)
            if opened is not None:
                found[index] = opened
        elif rank in stage.held_by:
            found[index] = _of_one_holder(layout, mesh, shards, zero)
    return found


def _of_one_holder(
    layout: Layout, mesh: DeviceMesh, shards: DeviceMesh, zero: int
) -> Group | None:
    if not zero:
        return mesh[(mesh.mesh_dim_names or ())[1]].get_group()
    if shards.ndim > 1 and sums_shards_last(layout.offload, zero, copies=1):
        return shards[(shards.mesh_dim_names or ())[0]].get_group()
    return None


def _across(mesh: DeviceMesh, holders: list[int], cut: int) -> Group | None:
    """Those of *holders* with this rank's part of a tensor that *cut* ranks in a row
    share out; None if it is of none."""
    own: Group | None = None
    held = mesh.mesh[holders].flatten(2)  # (holders, dp, tp); of experts edp, ep × etp
    parts = held.unflatten(1, (-1, cut)).flatten(0, 1).flatten(1)
    for part in parts.t().tolist():
        group = dist.new_group(part)
        if dist.get_rank() in part:
            own = group
    return own
