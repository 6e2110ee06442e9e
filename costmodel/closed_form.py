"""The pipelines of uniform candidates in closed form, row by row of columns.

`stage_kinds` says how a model's layers fall into a first, middle and last stage;
`makespan_s` is at least what the simulation of each row takes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from costmodel.columns import SCHEDULES
from costmodel.makespan import Runs, makespan_bound_s

Array = NDArray[Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Kinds:
    """How many numbered layers each kind of virtual stage has, and how many there are.

    Of the middle stages the last `high` have one layer more than the `low` before
    them (`uniform.split_layers`). Where there is one stage only, it is `first`.
    """

    first: Array
    low: Array
    high: Array
    last: Array
    low_count: Array
    high_count: Array


def stage_kinds(body: int, stages: Array) -> Kinds:
    """The split of *body* layers over *stages*, as `uniform.split_layers` does it."""
    base, extra = body // stages, body % stages
    middle = np.maximum(stages - 2, 0)
    high = np.minimum(extra, middle)
    first = base + (extra > middle)
    return Kinds(
        first=first,
        low=base,
        high=base + 1,
        last=np.where(stages > 1, base, 0),
        low_count=middle - high,
        high_count=high,
    )


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
) -> Array:
    """At least the seconds from the first forward to the last backward of each row.

    *schedule* holds indices into `columns.SCHEDULES`; `makespan` has the paths.
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
    return found.reshape(wide[0].shape)
