"""The pipelines of uniform candidates in closed form, row by row of columns.

`layer_runs` says how a model's layers fall into a first, middle and last stages;
`makespan_s` is at least what the simulation of each row takes.

Pipelines of which some boundaries, not all, lie between fast domains.

`makespan` knows one transfer time, which must then be the near one. The boundaries that
do cross bound the step by themselves: their transfers queue on one link.

    1f1b         a window of the two stages beside the last crossing boundary: a trip
                 there and back for every two micro-batches
    gpipe        all forwards cross before the last stage's first backward
    interleaved  one link carries every chunk's micro-batches
    others       no such path is counted
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from costmodel.batched.makespan import Runs, makespan_bound_s
from costmodel.layout import SCHEDULES
from costmodel.schedule import schedule_called
from costmodel.timeline import shared_bound_s
from profiles.arrays import Array


def partly_crosses(stride: Array, pp: Array, domain: int) -> Array:
    """Whether a pipeline, *stride* ranks a stage, leaves its domain at times."""
    inside = stride < domain
    return np.asarray(inside & (domain % stride == 0) & (stride * pp > domain))


def crossing_s(
    schedule: Array,
    *,
    stride: Array,
    pp: Array,
    domain: int,
    virtual_stages: Array,
    micro_batches: Array,
    least_pass_s: Array,
    far_s: Array,
) -> Array:
    """At least the seconds that crossing boundaries cost; 0 where none or all cross.

    *least_pass_s* is a forward and backward of the lightest stage, *far_s* one transfer
    between domains, *schedule* an index into `columns.SCHEDULES`.
    """
    m = micro_batches
    last = (pp - 1) * stride // domain * domain // stride  # stage behind the boundary
    fill = np.minimum(pp - 1 - last, m - 1)
    paths = {
        "1f1b": (m - 1 - fill) // 2 * 2 * (least_pass_s + far_s),
        "gpipe": 2 * m * far_s,
        "interleaved": virtual_stages * m * far_s,
    }
    found = np.select(
        [schedule == code for code in range(len(SCHEDULES))],
        [paths.get(name, np.zeros(())) for name in SCHEDULES],
    )
    return np.where(partly_crosses(stride, pp, domain), found, 0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Passes:
    """Forward and backward seconds of each kind of stage, in pipeline order; of a
    backward, what may be put off, and what goes where a forward runs at once."""

    forward_s: tuple[Array, ...]
    backward_s: tuple[Array, ...]
    weight_s: tuple[Array, ...]
    hidden_s: tuple[Array, ...]
    counts: tuple[Array, ...]


def makespan_s(
    passes: Passes,
    *,
    schedule: Array,
    virtual_stages: Array,
    micro_batches: Array,
    transfer_s: Array,
    turns: float,
    pp: Array,
) -> Array:
    """At least the seconds from the first forward to the last backward of each row.

    *schedule* holds indices into `columns.SCHEDULES`; `makespan` has the paths. *turns*
    ranks share a core (`costmodel.timeline.processor_sharing`).
    """
    groups = (passes.counts, passes.forward_s, passes.backward_s)
    columns = [*(item for group in groups for item in group), virtual_stages]
    shape = np.broadcast_shapes(
        *map(np.shape, (*columns, schedule, micro_batches, transfer_s))
    )
    codes = np.broadcast_to(schedule, shape)
    alone: Array = np.zeros(shape)
    for code in np.unique(codes):
        rows, name = codes == code, SCHEDULES[int(code)]

        def here(item: Array, rows: Array = rows) -> Array:
            return np.asarray(np.broadcast_to(item, shape)[rows])

        splits = schedule_called(name).splits
        alone[rows] = makespan_bound_s(
            name,
            Runs(
                counts=tuple(map(here, passes.counts)),
                forward_s=tuple(map(here, passes.forward_s)),
                backward_s=tuple(map(here, passes.backward_s)),
                weight_s=tuple(map(here, passes.weight_s)) if splits else (),
                hidden_s=tuple(map(here, passes.hidden_s)) if splits else (),
                transfer_s=here(transfer_s),
            ),
            virtual_stages=here(virtual_stages),
            micro_batches=here(micro_batches),
        )
    if turns == 1.0:
        return alone
    each = zip(*groups, strict=True)
    work_s = sum(count * (forward + back) for count, forward, back in each)
    busy_s = micro_batches * work_s / pp
    return shared_bound_s(alone, busy_s, turns=turns, pp=pp)
