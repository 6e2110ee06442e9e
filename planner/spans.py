"""Over which links the parts of a step speak."""

from __future__ import annotations

from planner.problem import Candidate
from profiles.cluster import Island, Level


def level_of(part: str, candidate: Candidate, island: Island) -> Level | None:
    """The slowest level that a part of the step crosses; None for no exchange."""
    choice = candidate.choice
    inner = choice.tp * choice.cp
    spans = {
        "tensor_comm": choice.tp,
        "context_comm": inner,
        "expert_comm": choice.ep * choice.etp,
        "data_comm": inner * choice.dp,
        "pipeline_comm": choice.gpus,
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
