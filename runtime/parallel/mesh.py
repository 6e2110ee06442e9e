"""`DeviceMesh` from a layout, and the groups of ranks that hold the same parameters.

Axes are pp, dp and tp over the layout's own ranks. On dp lie all ranks that hold the
same weights: replicas, and context-parallel ranks inside each replica, whose parts of
the sequence are as good as further batches. Where ZeRO's shards span a part of it, dp
is folded once more: dp_replicate × dp_shard.

Where a schedule has two copies of the model (Chimera), both pipeline ranks that hold a
stage sum its gradients. What is sharded is cut over ranks of one holder; whoever has
the same shard, in replicas of shards and on other holders, sums it where `fully_shard`
does not.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

from costmodel.layout import Layout, sums_shards_last
from costmodel.stages import data_parallel, one_zero
from profiles.errors import Unsupported
from runtime.parallel.collectives import Group

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
            "stages with different meshes are not executed; `simulate` prices them"
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
    cp = layout.stages[0].mesh.cp
    if cp == 1:
        return None
    return own_group(
        list(members)
        for stage in rank_grid(layout)
        for first in range(0, len(stage), cp)
        for members in zip(*stage[first : first + cp], strict=True)
    )


def own_group(members: Iterable[list[int]]) -> dist.ProcessGroup | None:
    """A group of each of *members*, opened by every rank at once: this rank's, if it
    is of one."""
    own: dist.ProcessGroup | None = None
    for ranks in members:
        group = dist.new_group(ranks)
        if dist.get_rank() in ranks:
            own = group
    return own


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
    held = mesh.mesh[holders].flatten(2)  # (holders, dp, tp); of experts edp, ep × etp
    parts = held.unflatten(1, (-1, cut)).flatten(0, 1).flatten(1)
    return own_group(parts.t().tolist())
