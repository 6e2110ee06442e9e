"""`DeviceMesh` from a layout: axes pp, dp and tp over the layout's own ranks.

On dp lie all ranks that hold the same weights: replicas, and context-parallel ranks
inside each replica, whose parts of the sequence are as good as further batches.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

from costmodel.layout import Layout
from profiles.errors import Unsupported

AXES = ("pp", "dp", "tp")
EXPERT_AXES = ("pp", "edp", "ep")


@dataclass(frozen=True, slots=True, kw_only=True)
class Meshes:
    """The ranks of a job by the weights that they hold: all, and those of experts,
    where a model has any."""

    weights: DeviceMesh
    experts: DeviceMesh | None = None


def device_mesh(layout: Layout, device_type: str) -> DeviceMesh:
    """The mesh of all ranks; every rank calls this at once.

    Raises Unsupported where stages differ in mesh.
    """
    grid = torch.tensor(rank_grid(layout))
    return DeviceMesh(device_type, grid, mesh_dim_names=AXES)


def rank_grid(layout: Layout) -> list[list[list[int]]]:
    """Ranks by [pipeline rank][rank with the same weights][tensor-parallel rank].

    Megatron's order, as `costmodel.placement` prices it: tp varies fastest, then cp.
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
    """The same ranks once more, for experts: axes pp, edp and ep.

    Of a stage's ranks, in their order, each ep in a row hold all experts, and edp of
    such rows the same ones (Liu et al., MoE Parallel Folding, 2025; as
    `costmodel.experts` prices it). Every rank calls this at once.

    Raises Unsupported where experts are cut in width.
    """
    mesh = layout.stages[0].mesh
    if mesh.etp > 1:
        raise Unsupported("experts are not cut in width: choose etp 1")
    stages = [[rank for row in stage for rank in row] for stage in rank_grid(layout)]
    grid = torch.tensor(stages).unflatten(1, (-1, mesh.ep))
    return DeviceMesh(device_type, grid, mesh_dim_names=EXPERT_AXES)


def _context_members(grid: list[list[list[int]]], cp: int) -> Iterator[list[int]]:
    for stage in grid:
        for first in range(0, len(stage), cp):
            for members in zip(*stage[first : first + cp], strict=True):
                yield list(members)
