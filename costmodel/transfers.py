"""Point-to-point transfers between pipeline stages: bytes and seconds of a boundary.

Each tp rank sends its own slice of the boundary activation: with sequence parallelism
that is how it lies; without, Megatron's scatter-gather optimisation cuts it so and an
all-gather inside the fast domain puts it together (SC 2021, section 4.1).
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from costmodel.layout import Layout
from costmodel.machine import Machine
from costmodel.placement import near_members
from profiles.job import Job
from profiles.precision import Precision

Array = NDArray[Any]


def boundary_s(
    job: Job,
    on: Machine,
    precision: Precision,
    *,
    tp: Array,
    cp: Array,
    micro_batch: Array,
    sequence_parallel: Array,
    far: Array,
) -> Array:
    """Seconds of one boundary activation; between fast domains where *far*."""
    hidden = job.graph.block("layer").extents["hidden"]
    whole = micro_batch * (job.seq_len / cp) * hidden * precision.activation.bytes
    sent = on.send_s(whole / tp, far=far)
    near = near_members(np.asarray(1), tp, on.island)
    joined = on.collective_s("all_gather", whole, ranks=tp, near=near)
    return np.asarray(sent + np.where(sequence_parallel, 0.0, joined))


def transfers_s(layout: Layout, job: Job, on: Machine) -> Array:
    """Seconds from each virtual stage of *layout* to the next."""
    stages, domain = layout.stages, on.island.domain
    far = [
        any(
            here // domain != there // domain
            for here, there in zip(_ends(one), _ends(two), strict=True)
        )
        for one, two in pairwise(stages)
    ]
    mesh = stages[0].mesh
    seconds = boundary_s(
        job,
        on,
        layout.precision,
        tp=np.asarray(mesh.tp),
        cp=np.asarray(mesh.cp),
        micro_batch=np.asarray(layout.micro_batch(stages[0])),
        sequence_parallel=np.asarray(stages[0].plans[0].sharding == "megatron-sp"),
        far=np.asarray(far, dtype=bool),
    )
    same = [one.held_by == two.held_by for one, two in pairwise(stages)]
    return np.where(np.asarray(same, dtype=bool), 0.0, seconds)


def _ends(stage: Any) -> tuple[int, int]:
    spans = stage.mesh.ranks.spans
    return spans[0][0], spans[-1][1]
