"""`DeviceMesh` from a layout: axes pp, dp and tp over the layout's own ranks.

On dp lie all ranks that hold the same weights: replicas, and context-parallel ranks
inside each replica, whose parts of the sequence are as good as further batches. Where
ZeRO's shards span a part of it, dp is folded once more: dp_replicate × dp_shard.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

from costmodel.layout import Layout
from costmodel.stages import data_parallel, one_zero
from profiles.errors import Unsupported

AXES = ("pp", "dp", "tp")
EXPERT_AXES = ("pp", "edp", "ep", "etp")


@dataclass(frozen=True, slots=True, kw_only=True)
class Meshes:
    """The ranks of a job by the weights that they hold: all, and those of experts,
    where a model has any."""

    weights: DeviceMesh
    experts: DeviceMesh | None = None
    shards: DeviceMesh  # dp as ZeRO cuts it
    expert_shards: DeviceMesh | None = None  # edp

    @classmethod
    def of(cls, layout: Layout, device_type: str, *, experts: bool) -> Meshes:
        """All meshes of *layout*, of a model with *experts* or without; every rank
        calls this at once. Raises Unsupported as `device_mesh`."""
        weights = device_mesh(layout, device_type)
        shards = shard_mesh(layout, weights)
        if not experts:
            return cls(weights=weights, shards=shards)
        over_experts = expert_mesh(layout, device_type)
        return cls(
            weights=weights,
            experts=over_experts,
            shards=shards,
            expert_shards=shard_mesh(layout, over_experts),
        )

    def groups(self) -> dict[str, dist.ProcessGroup]:
        """This rank's group of each axis that has more than one rank, by its name."""
        found: dict[str, dist.ProcessGroup] = {}
        for mesh in (self.weights, self.experts, self.shards, self.expert_shards):
            for axis in mesh.mesh_dim_names or () if mesh is not None else ():
                assert mesh is not None
                if mesh[axis].size() > 1:
                    found.setdefault(axis, mesh[axis].get_group())
        return found


def device_mesh(layout: Layout, device_type: str) -> DeviceMesh:
    """The mesh of all ranks; every rank calls this at once.

    Raises Unsupported where stages differ in mesh.
    """
    grid = torch.tensor(rank_grid(layout))
    return DeviceMesh(device_type, grid, mesh_dim_names=AXES)


def shard_mesh(layout: Layout, mesh: DeviceMesh) -> DeviceMesh:
    """The dp axis of *mesh* (edp of an expert mesh) as `fully_shard` takes it: one
    axis, or where shards span a part of it, replicas of shards × shards.

    Every rank calls this at once. A shard's ranks are neighbours, so that gathers stay
    near (HSDP: Zhao et al., VLDB 2023, section 3.2.2).
    """
    stage = layout.stages[0]
    parallel = data_parallel(stage.mesh, one_zero(stage))
    axis = "dp"
    if "edp" in (mesh.mesh_dim_names or ()):
        axis, parallel = "edp", parallel.of_experts()
    whole, shards = mesh[axis], int(parallel.shards)
    if not one_zero(stage) or shards == whole.size():
        return whole
    sizes = (whole.size() // shards, shards)
    return whole._unflatten(axis, sizes, (f"{axis}_replicate", f"{axis}_shard"))


def rank_grid(layout: Layout) -> list[list[list[int]]]:
    """Ranks by [pipeline rank][rank with the same weights][tensor-parallel rank].

    Megatron's order, as `costmodel.machine.topology` prices it: tp varies fastest,
    then cp.
    """
    shapes = {(stage.mesh.dp, stage.mesh.cp, stage.mesh.tp) for stage in layout.stages}
    if len(shapes) > 1:
        raise Unsupported(
            "stages with unlike meshes are not carried out; `simulate` prices them"
        )
    ((dp, cp, tp),) = shapes
    grid = []
    for pipeline_rank in range(layout.pp):
        held = next(one for one in layout.stages if pipeline_rank == one.held_by[0])
        ranks = [
            rank
            for first, last in held.mesh.ranks.spans
            for rank in range(first, last + 1)
        ]
        width = dp * cp * tp
        grid.append([ranks[start : start + tp] for start in range(0, width, tp)])
    return grid


def context_group(layout: Layout) -> dist.ProcessGroup | None:
    """The ranks that share this one's sequences; every rank calls this at once.

    None where sequences are whole. The group is never another axis's, so that what is
    sent over it is known by it.
    """
    cp, mine = layout.stages[0].mesh.cp, None
    if cp == 1:
        return None
    for members in _context_members(rank_grid(layout), cp):
        opened = dist.new_group(members)
        if dist.get_rank() in members:
            mine = opened
    return mine


def expert_mesh(layout: Layout, device_type: str) -> DeviceMesh:
    """The same ranks once more, for experts: axes pp, edp, ep and etp.

    Of a stage's ranks, in their order, each etp in a row share experts, ep of such rows
    hold all experts, and edp of those the same ones (Liu et al., MoE Parallel Folding,
    2025; as `costmodel.operators.degrees` prices it). Every rank calls this at once.
    """
    mesh = layout.stages[0].mesh
    stages = [[rank for row in stage for rank in row] for stage in rank_grid(layout)]
    grid = torch.tensor(stages).unflatten(1, (-1, mesh.ep, mesh.etp))
    return DeviceMesh(device_type, grid, mesh_dim_names=EXPERT_AXES)


def _context_members(grid: list[list[list[int]]], cp: int) -> Iterator[list[int]]:
    for stage in grid:
        for first in range(0, len(stage), cp):
            for members in zip(*stage[first : first + cp], strict=True):
                yield list(members)
