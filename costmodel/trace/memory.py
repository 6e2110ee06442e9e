"""Bytes over time of a pipeline rank, as its schedule takes and frees them."""

from __future__ import annotations

import numpy as np

from costmodel.simulation import Estimate
from costmodel.timeline import bytes_after, bytes_during
from profiles.arrays import Array

MOVING = ("activations", "transient")  # what passes take and free


def scale(estimate: Estimate, rank: int) -> float:
    """What the bytes of the schedule are multiplied by, so that the highest point of
    *rank* is its estimated peak (buffers and what is away are no part of them)."""
    parts = estimate.memory[rank].document()
    highest = float(_during(estimate, rank).max(initial=0.0))
    return sum(parts[name] for name in MOVING) / highest if highest > 0 else 1.0


def resting(estimate: Estimate, rank: int) -> dict[str, float]:
    """Bytes of *rank* that lie there all along, by what they are."""
    parts = estimate.memory[rank].document()
    return {
        name: size
        for name, size in parts.items()
        if name not in (*MOVING, "stage", "total")
    }


def memory_levels(estimate: Estimate, rank: int) -> tuple[Array, Array]:
    """When bytes change on *rank*, and to what: during each pass, and after it.

    What lies there all along is that of the peak.
    """
    timeline = estimate.timeline
    during, after = _during(estimate, rank), _after(estimate, rank)
    start, end = timeline.start_s[rank], timeline.end_s[rank]
    time = np.column_stack([start, end, end]).ravel()
    moving = np.column_stack([during, during, after]).ravel()
    total = sum(resting(estimate, rank).values())
    level = total + np.maximum(moving * scale(estimate, rank), 0.0)
    return np.append(time, timeline.makespan_s), np.append(level, level[-1])


def _after(estimate: Estimate, rank: int) -> Array:
    timeline = estimate.timeline
    copies, rows = timeline.program.shape.copies, timeline.program.rows[rank]
    return np.asarray(bytes_after(timeline.costs, copies)[rows].cumsum())


def _during(estimate: Estimate, rank: int) -> Array:
    timeline = estimate.timeline
    copies, rows = timeline.program.shape.copies, timeline.program.rows[rank]
    beside = bytes_during(timeline.costs, copies)[rows]
    return np.asarray(_after(estimate, rank) + beside)
