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
from costmodel.turns import shared_bound_s

Array = NDArray[Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Passes:
    """Forward and backward seconds of each kind of stage, in pipeline order."""

    forward_s: tuple[Array, ...]
    backward_s: tuple[Array, ...]
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
    flat = [item for group in groups for item in group]
    wide = np.broadcast_arrays(
        *flat, schedule, virtual_stages, micro_batches, transfer_s
    )
    *stages, codes, chunks, batches, transfers = (np.ravel(item) for item in wide)
    kinds = len(passes.counts)
    found: Array = np.zeros(codes.shape)
    for code in np.unique(codes):
        rows = codes == code
        here = [item[rows] for item in stages]
        found[rows] = makespan_bound_s(
            SCHEDULES[int(code)],
            Runs(
                counts=tuple(here[:kinds]),
                forward_s=tuple(here[kinds : 2 * kinds]),
                backward_s=tuple(here[2 * kinds :]),
                transfer_s=transfers[rows],
            ),
            virtual_stages=chunks[rows],
            micro_batches=batches[rows],
        )
    alone = found.reshape(wide[0].shape)
    if turns == 1.0:
        return alone
    each = zip(*groups, strict=True)
    work_s = sum(count * (forward + back) for count, forward, back in each)
    busy_s = micro_batches * work_s / pp
    return shared_bound_s(alone, busy_s, turns=turns, pp=pp)
