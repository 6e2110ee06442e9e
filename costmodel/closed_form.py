"""The pipelines of uniform candidates in closed form, row by row of columns.

`layer_runs` says how a model's layers fall into a first, middle and last stages;
`makespan_s` is at least what the simulation of each row takes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from costmodel.columns import SCHEDULES
from costmodel.makespan import Runs, makespan_bound_s
from costmodel.schedule import schedule_called
from costmodel.turns import shared_bound_s

Array = NDArray[Any]


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
    ranks share a core (`costmodel.turns`).
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
