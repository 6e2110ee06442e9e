"""`DeviceMesh` from a layout: axes pp, dp and tp over the layout's own ranks."""

from __future__ import annotations

import torch
from torch.distributed.device_mesh import DeviceMesh

from costmodel.layout import Layout
from profiles.errors import Unsupported

AXES = ("pp", "dp", "tp")


def device_mesh(layout: Layout, device_type: str) -> DeviceMesh:
    """The mesh of all ranks; every rank calls this at once.

    Raises Unsupported where stages differ in mesh.
    """
    grid = torch.tensor(rank_grid(layout))
    return DeviceMesh(device_type, grid, mesh_dim_names=AXES)


def rank_grid(layout: Layout) -> list[list[list[int]]]:
    """Ranks by [pipeline rank][data-parallel rank][tensor-parallel rank].

    Megatron's order, as `costmodel.placement` prices it: tp varies fastest.
    """
    shapes = {(stage.mesh.dp, stage.mesh.cp, stage.mesh.tp) for stage in layout.stages}
    if len(shapes) > 1 or layout.stages[0].mesh.cp > 1:
        raise Unsupported(
            "stages with unlike meshes, and context parallelism, are not carried out; "
            "`simulate` prices them"
        )
    ((dp, _, tp),) = shapes
    grid = []
    for pipeline_rank in range(layout.pp):
        held = next(one for one in layout.stages if pipeline_rank in one.held_by)
        ranks = [
            rank
            for first, last in held.mesh.ranks.spans
            for rank in range(first, last + 1)
        ]
        grid.append([ranks[start : start + tp] for start in range(0, dp * tp, tp)])
    return grid
