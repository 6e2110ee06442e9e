"""Each stage's link to the host, and which passes hide its copies.

What a micro-batch's passes hide is what they take; of backward the parameters that are
fetched from the host beside it come off first (`costmodel.offload_price`).
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from costmodel.data_parallel import DataParallel
from costmodel.estimate import Estimate
from costmodel.island_price import Placed
from costmodel.layout_price import LayoutPricer
from costmodel.machine import Machine
from costmodel.mesh_parallel import degrees_of_stage, parallel_of
from costmodel.offload import Offload
from costmodel.offload_price import shard_bytes, tier_rates
from costmodel.retention_away import Link
from profiles.job import Job

Array = NDArray[Any]


def links_of(found: Estimate, job: Job, on: Machine, tier: str) -> tuple[Link, ...]:
    """The link of every virtual stage of *found*, whose activations are all here."""
    layout, where = found.layout, on.running(found.layout.gpus)
    plus = layout.zero_plus
    rows = np.array([degrees_of_stage(one, layout.pp, plus) for one in layout.stages]).T
    parallel, costs = parallel_of(rows), found.timeline.costs
    to = tier_rates(parallel, Offload(tier=tier), where)
    rate = np.broadcast_to(np.minimum(to.read, to.write), len(layout.stages))
    hides = "offload" in where.software.overlap
    backward_s = costs.backward_s - _fetched(found, job, where, parallel) / rate
    return tuple(
        Link(bytes_per_s=each, forward_s=forward, backward_s=backward)
        for each, forward, backward in zip(
            rate.tolist(),
            (costs.forward_s * hides).tolist(),
            (np.maximum(backward_s, 0.0) * hides).tolist(),
            strict=True,
        )
    )


def _fetched(found: Estimate, job: Job, on: Machine, parallel: DataParallel) -> Array:
    """Bytes of parameters that a backward of each stage brings from the host."""
    layout = found.layout
    if not layout.offload.parameters:
        return np.zeros(len(layout.stages))
    pricer = LayoutPricer(job=job, layout=layout, machine=on)
    held = Placed(pricer=pricer).columns()
    each = shard_bytes(layout.precision, on)
    frozen = held.frozen_parameters * layout.precision.frozen_bytes
    dense, experts = held.parameters * each + frozen, held.expert_parameters * each
    return np.asarray(dense / parallel.shards + experts / parallel.of_experts().shards)
