"""Pipelines of which some boundaries, not all, lie between fast domains.

`makespan` knows one transfer time, which must then be the near one. The boundaries that
do cross bound the step by themselves: their transfers queue on one link.

    1f1b         a window of the two stages beside the last crossing boundary: a trip
                 there and back for every two micro-batches
    gpipe        all forwards cross before the last stage's first backward
    interleaved  one link carries every chunk's micro-batches
    others       no such path is counted
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from costmodel.columns import SCHEDULES

Array = NDArray[Any]


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
