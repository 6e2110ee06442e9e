"""What no run of a layout can beat: the closed form of a finished `Layout`.

The same functions as the columns of `grid`, fed from the layout's own stages; a law
holds the two equal, and both at most what the simulation says.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from costmodel.closed_form import Passes, makespan_s
from costmodel.columns import SCHEDULES
from costmodel.data_parallel import buckets_of, reduce_tail_s
from costmodel.layout import Layout
from costmodel.layout_price import LayoutPricer
from costmodel.machine import Machine
from costmodel.placement import always_crosses
from costmodel.stage import StagePrice
from costmodel.transfers import boundary_s
from profiles.errors import Unsupported
from profiles.job import Job


def step_time_bound_s(job: Job, layout: Layout, on: Machine) -> float:
    """At least the seconds of a step of *layout*, in closed form.

    Raises Unsupported for stages that are not first, alike in the middle, and last.
    """
    stages = LayoutPricer(job=job, layout=layout, machine=on).stages()
    kinds, counts = _kinds(layout, stages)
    passes = Passes(
        forward_s=tuple(item.forward_s for item in kinds),
        backward_s=tuple(item.backward_s for item in kinds),
        counts=tuple(np.asarray(count) for count in counts),
    )
    makespan = makespan_s(
        passes,
        schedule=np.asarray(SCHEDULES.index(layout.schedule)),
        pp=np.asarray(layout.pp),
        virtual_stages=np.asarray(layout.virtual_stages),
        micro_batches=np.asarray(layout.micro_batches),
        transfer_s=_transfer_s(job, layout, on),
    )
    return float(makespan) + _end_s(layout, stages, on)


def _kinds(
    layout: Layout, stages: list[StagePrice]
) -> tuple[tuple[StagePrice, ...], tuple[int, ...]]:
    """(first, low, high, last) and how many of each there are."""
    sizes = [stage.body for stage in layout.stages]
    middle = sizes[1:-1]
    low, high = min(middle, default=0), max(middle, default=0)
    if middle != sorted(middle) or high - low > 1:
        raise Unsupported("a closed form needs middle stages of n, then n + 1, layers")
    of_size = dict(zip(middle, stages[1:-1], strict=True))
    light = of_size.get(low, stages[0])
    heavy = of_size.get(high, stages[0])
    several = high > low
    counts = (
        1,
        middle.count(low),
        middle.count(high) if several else 0,
        int(len(stages) > 1),
    )
    return (stages[0], light, heavy, stages[-1]), counts


def _transfer_s(job: Job, layout: Layout, on: Machine) -> Any:
    if layout.pp == 1:
        return np.zeros(())
    mesh = layout.stages[0].mesh
    return boundary_s(
        job,
        on,
        layout.precision,
        tp=np.asarray(mesh.tp),
        cp=np.asarray(mesh.cp),
        micro_batch=np.asarray(layout.micro_batch(layout.stages[0])),
        sequence_parallel=np.asarray(
            layout.stages[0].plans[0].sharding == "megatron-sp"
        ),
        far=always_crosses(np.asarray(mesh.size), on.island),
    )


def _end_s(layout: Layout, stages: list[StagePrice], on: Machine) -> float:
    """From the last backward to the end of the step."""
    ranks = [
        [
            price
            for price, stage in zip(stages, layout.stages, strict=True)
            if stage.held_by == (rank,)
        ]
        for rank in (0, layout.pp - 1)
    ]
    overlapped = "grad" in on.software.overlap
    behind = stages[0].reduce_s if overlapped else sum(i.reduce_s for i in ranks[0])
    tail = reduce_tail_s(
        np.asarray(behind),
        stages[0].backward_s,
        buckets_of(stages[0].parameters, layout.precision, on),
        overlapped=overlapped,
    )
    steps = (sum(float(i.step_s + i.gather_s) for i in held) for held in ranks)
    return float(tail) + max(steps)
