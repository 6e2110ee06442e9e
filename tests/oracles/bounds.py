"""What no run of a layout can beat: the closed form of a finished `Layout`.

The same functions as the columns of `grid`, fed from the layout's own stages; a law
holds the two equal, and both at most what the simulation says.
"""

from __future__ import annotations

from itertools import groupby
from typing import Any

import numpy as np

from costmodel.batched.makespan import Runs, makespan_bound_s
from costmodel.batched.pricing import crossing_s
from costmodel.layout.layout import Layout
from costmodel.layout.strategy import SCHEDULES
from costmodel.machine.assembly import Machine
from costmodel.machine.framework import hides_gradients
from costmodel.machine.topology import always_crosses
from costmodel.schedule.schedules import schedule_called
from costmodel.stages.layout_cost import LayoutPricer
from costmodel.stages.pipeline_p2p import Sender, boundary, layout_tied_sync, sends
from costmodel.stages.stage_cost import StagePrice, most_hidden_s
from costmodel.timeline.processor_sharing import shared_bound_s
from costmodel.timeline.timeline import reduce_tail_s
from profiles.models.job import Job


def step_time_bound_s(job: Job, layout: Layout, on: Machine) -> float:
    """At least the seconds of a step of *layout*, in closed form."""
    on = on.running(layout.gpus)
    stages = LayoutPricer(job=job, layout=layout, machine=on).stages()
    runs = _runs(layout, stages, _transfer_s(job, layout, on, _far(layout, on)), on)
    makespan = makespan_bound_s(
        layout.schedule,
        runs,
        virtual_stages=np.array([layout.virtual_stages]),
        micro_batches=np.array([layout.micro_batches]),
    )
    makespan = shared_bound_s(
        makespan,
        layout.micro_batches * runs.work_s / layout.pp,
        turns=on.turns,
        pp=np.asarray(layout.pp),
    )
    if schedule_called(layout.schedule).stale is not None:
        return max(float(makespan[0]), _longest_s(layout, stages, runs, on))
    makespan = np.maximum(makespan, _crossing_s(job, layout, stages, on))
    tied = float(layout_tied_sync(layout, job, on).seconds.max())
    return float(makespan[0]) + _end_s(layout, stages, on) + tied + on.step_s


def _longest_s(
    layout: Layout, stages: list[StagePrice], runs: Runs, on: Machine
) -> float:
    """A rank's step that waits for nobody, of the rank whose is the longest."""
    level, tp = layout.stages[0].plans[0].zero, layout.stages[0].mesh.tp
    overlapped = bool(hides_gradients(on.framework, tp, level))
    faster = min(on.turns, layout.pp)
    return max(
        layout.micro_batches
        * float(runs.at(runs.both_s, np.asarray(rank)).item())
        / faster
        + float(
            reduce_tail_s(
                one.reduce_s, one.backward_s, buckets=one.buckets, overlap=overlapped
            )
        )
        + float(one.step_s + one.gather_s)
        + on.step_s
        for rank, one in enumerate(stages)
    )


def _runs(
    layout: Layout, stages: list[StagePrice], transfer_s: Any, on: Machine
) -> Runs:
    """The first stage, runs of equal middle ones, and the last."""
    sent = sends(np.asarray(transfer_s), on)
    in_v = schedule_called(layout.schedule).in_v  # not all boundaries are crossed
    extra_s, end = 0.0 if in_v else float(sent.in_passes_s), len(stages) - 1
    first, *middle = [
        (
            float(item.forward_s) + (extra_s if place < end else 0.0),
            float(item.backward_s) + (extra_s if place > 0 else 0.0),
            float(item.weight_s),
            float(most_hidden_s(item.expert_comm_s, item.backward_s, on)),
        )
        for place, item in enumerate(stages)
    ]
    last = middle[-1:]
    runs = [(one, len(list(equal))) for one, equal in groupby(middle[:-1])]
    runs = [(first, 1), *runs, *((one, 1) for one in last)]
    if not last:
        runs.append((first, 0))
    forward, backward, weight, hidden = (
        tuple(np.array([one[place]]) for one, _ in runs) for place in range(4)
    )
    return Runs(
        counts=tuple(np.array([count]) for _, count in runs),
        forward_s=forward,
        backward_s=backward,
        weight_s=weight,
        hidden_s=hidden,
        transfer_s=np.array([float(sent.beside_s)]),
    )


def _far(layout: Layout, on: Machine) -> Any:
    return always_crosses(np.asarray(layout.stages[0].mesh.size), on.island)


def _crossing_s(job: Job, layout: Layout, stages: list[StagePrice], on: Machine) -> Any:
    return crossing_s(
        np.asarray(SCHEDULES.index(layout.schedule)),
        stride=np.asarray(layout.stages[0].mesh.size),
        pp=np.asarray(layout.pp),
        domain=on.island.domain,
        virtual_stages=np.asarray(layout.virtual_stages),
        micro_batches=np.asarray(layout.micro_batches),
        least_pass_s=min(item.forward_s + item.backward_s for item in stages),
        far_s=_transfer_s(job, layout, on, np.asarray(True)),
    )


def _transfer_s(job: Job, layout: Layout, on: Machine, far: Any) -> Any:
    if layout.pp == 1:
        return np.zeros(())
    sender = Sender.of(layout, layout.stages[0])
    return boundary(job, on, layout.precision, sender, far=far).seconds


def _end_s(layout: Layout, stages: list[StagePrice], on: Machine) -> float:
    """From the last backward to the end of the step."""
    known = schedule_called(layout.schedule)
    in_pairs = known.in_v or known.copies > 1
    ranks = [
        [
            price
            for price, stage in zip(stages, layout.stages, strict=True)
            if rank in stage.held_by
        ]
        for rank in ((0,) if in_pairs else (0, layout.pp - 1))
    ]
    first = layout.stages[0]
    level = first.plans[0].zero
    overlapped = bool(hides_gradients(on.framework, first.mesh.tp, level))

    def tail(stage: StagePrice, reduce_s: Any, last_s: Any) -> float:
        found = reduce_tail_s(
            np.asarray(reduce_s), last_s, buckets=stage.buckets, overlap=overlapped
        )
        return float(found)

    steps = max(sum(float(i.step_s + i.gather_s) for i in held) for held in ranks)
    if not (in_pairs or known.splits):
        behind = stages[0].reduce_s if overlapped else sum(i.reduce_s for i in ranks[0])
        return tail(stages[0], behind, stages[0].backward_s) + steps
    puts_off = known.splits and layout.pp > 1
    held = 1 if overlapped else layout.virtual_stages * known.copies
    return steps + min(
        tail(one, held * one.reduce_s, one.weight_s if puts_off else one.backward_s)
        for one in stages
    )
