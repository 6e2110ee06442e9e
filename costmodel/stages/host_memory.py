"""What is offloaded takes of a node: of its hosts' memory, or of its drives.

    states        what `memory` leaves out of the device's, by parameter
    activations   the share that is away × micro-batches between forward and backward
    a node        all of its ranks together; nodes are filled in the order of ranks

An optimizer on the host has the gradients of its shard beside it, from which it steps
(Ren et al., ATC 2021, section 4.1); one on drives those that ZeRO scatters.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from costmodel.layout import Layout, Offload
from costmodel.stages.data_parallelism import DataParallel, level_away
from costmodel.stages.device_memory import Peak
from costmodel.stages.islands import spans_of
from costmodel.stages.offload_cost import state_bytes
from profiles.arrays import Array
from profiles.hardware import Cluster, Island, Precision
from profiles.units import format_bytes

TIER_WORDS: Final = {"cpu": "host memory", "nvme": "drives"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Away:
    """Bytes that the fullest node has of what is offloaded, and what it offers: None
    where the cluster does not say. Of unlike islands, the node that has most of what
    it offers; None if no island says."""

    tier: str
    node_bytes: float
    capacity_bytes: float | None

    @property
    def fits(self) -> bool:
        return self.capacity_bytes is None or self.node_bytes <= self.capacity_bytes

    @property
    def share(self) -> float:
        """Of what it offers; 0 where that is not known."""
        return self.node_bytes / self.capacity_bytes if self.capacity_bytes else 0.0

    @property
    def words(self) -> str:
        return f"{format_bytes(self.node_bytes)} of a node's {TIER_WORDS[self.tier]}"

    def document(self) -> dict[str, Any]:
        return {
            "tier": self.tier,
            "node_bytes": self.node_bytes,
            "node_capacity_bytes": self.capacity_bytes,
        }


def capacity_bytes(cluster: Cluster, tier: str) -> float | None:
    """What a node of *cluster* offers to all of its ranks; None if nobody says, or its
    islands are unlike."""
    if len(cluster.islands) > 1:
        return None
    return _offered_bytes(cluster.island, tier)


def _offered_bytes(node: Island, tier: str) -> float | None:
    offered = node.nvme if tier == "nvme" else node.host_memory
    return None if offered is None else offered.si


def away_of(peak: Peak, layout: Layout, cluster: Cluster) -> Away | None:
    """What *layout* has offloaded; None if nothing is."""
    offload = layout.away
    if not offload.states and not peak.away_bytes.any():
        return None
    each = peak.away_bytes + states_bytes(
        peak.parameters,
        peak.expert_parameters,
        peak.frozen_parameters,
        DataParallel.of(peak.parallel),
        peak.precision,
        peak.moments,
        offload,
        shards_are_masters=peak.on.framework.fully_shard,
    )
    if len(cluster.islands) > 1:
        return _over_islands(each, layout, cluster, offload.tier)
    on_node = cluster.island.devices_per_node
    return Away(
        tier=offload.tier,
        node_bytes=fullest_node_bytes(each, _sizes(layout), on_node),
        capacity_bytes=capacity_bytes(cluster, offload.tier),
    )


def _over_islands(each: Array, layout: Layout, cluster: Cluster, tier: str) -> Away:
    """The fullest node of each island, and of those the one with least room."""
    meshes = {stage.held_by[0]: stage.mesh for stage in layout.stages}
    held = sorted(
        (mesh.ranks.spans[0][0], mesh.size, rank) for rank, mesh in meshes.items()
    )
    bytes_of = np.repeat(
        [float(each[rank]) for _, _, rank in held], [size for _, size, _ in held]
    )
    nodes = []
    for span in spans_of(cluster):
        here = bytes_of[span.first : None if span.last is None else span.last + 1]
        if len(here):
            on_node = span.island.devices_per_node
            starts = np.arange(0, len(here), on_node)
            fullest = float(np.add.reduceat(here, starts).max())
            offered = _offered_bytes(span.island, tier)
            nodes.append(Away(tier=tier, node_bytes=fullest, capacity_bytes=offered))
    return max(nodes, key=lambda node: (node.share, node.node_bytes))


def states_bytes(
    parameters: Array,
    expert_parameters: Array,
    frozen_parameters: Array,
    parallel: DataParallel,
    precision: Precision,
    moments: int,
    offload: Offload,
    *,
    shards_are_masters: bool,
) -> Array:
    """Bytes of states that a rank has away; parameters before sharding.

    Shards that are away beside what is updated are counted once where they are the
    same: in 32 bits, or where *shards_are_masters* (`fully_shard`).
    """
    found: Array = np.zeros(np.shape(parameters))
    sides = [(parameters, parallel), (expert_parameters, parallel.of_experts())]
    if offload.optimizer:
        level = level_away(parallel, offload, fully_shard=shards_are_masters)
        beside = (level >= 1) | (offload.tier == "cpu")
        each = state_bytes(precision, moments) + beside * precision.gradient.bytes
        found = found + sum(held / side.shard_of(1) * each for held, side in sides)
    same = offload.optimizer and (shards_are_masters or not precision.master)
    if offload.parameters and not same:
        for held, side in sides:
            found = found + held * precision.parameter.bytes / side.shard_of(3)
    if offload.parameters:
        frozen = frozen_parameters * precision.frozen_bytes
        found = found + frozen / parallel.shard_of(3)
    return found


def fullest_node_bytes(each: Array, sizes: Sequence[int], on_node: int) -> float:
    """Of ranks of *each* bytes, *sizes* of them side by side, the most that *on_node*
    neighbours have together.

    >>> fullest_node_bytes(np.array([3.0, 1.0]), [4, 4], 8)
    16.0
    """
    ends = np.cumsum([0, *sizes])
    before = np.cumsum([0.0, *(each * np.asarray(sizes))])
    marks = np.minimum(np.arange(0, ends[-1] + on_node, on_node), ends[-1])
    return float(np.diff(np.interp(marks, ends, before)).max())


def _sizes(layout: Layout) -> list[int]:
    """How many ranks each pipeline rank has."""
    meshes = {stage.mesh.size for stage in layout.stages}
    if len(meshes) == 1:
        return [layout.gpus // layout.pp] * layout.pp
    size_of = {stage.held_by[0]: stage.mesh.size for stage in layout.stages}
    return [size_of[rank] for rank in range(layout.pp)]
