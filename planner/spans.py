"""Over which links the parts of a step speak."""

from __future__ import annotations

from planner.problem import Candidate
from profiles.cluster import Island, Level


def level_of(part: str, candidate: Candidate, island: Island) -> Level | None:
    """The slowest level that a part of the step crosses; None for no exchange."""
    layout = candidate.estimate.layout
    meshes = [stage.mesh for stage in layout.stages]
    spans = {
        "tensor_comm": max(mesh.tp for mesh in meshes),
        "context_comm": max(mesh.tp * mesh.cp for mesh in meshes),
        "expert_comm": max(mesh.ep * mesh.etp for mesh in meshes),
        "data_comm": max(len(mesh.ranks) for mesh in meshes),
        "pipeline_comm": layout.gpus,
    }
    if part not in spans:
        return None
    for level in island.levels:
        if level.devices is None or spans[part] <= level.devices:
            return level
    return island.levels[-1]


def spans_far(part: str, candidate: Candidate, island: Island) -> bool:
    """Whether a part of the step leaves the innermost domain of devices."""
    level = level_of(part, candidate, island)
    return level is not None and level is not island.levels[0]
