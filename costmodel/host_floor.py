"""At least what a candidate's fullest node has of what is offloaded, as columns.

mean     states of all stages, over the nodes                    → _mean_bytes
ends     where a pipeline rank fills whole nodes, those of the fuller of its two
         ends with what is in flight there                       → _end_bytes
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from costmodel.columns import SCHEDULES
from costmodel.host_memory import states_bytes
from costmodel.in_flight import peak_in_flight
from costmodel.rows import Rows

Array = NDArray[Any]


def least_node_bytes(rows: Rows) -> Array:
    """At least the bytes of the fullest node of each row."""
    on_node, pp = rows.on.island.devices_per_node, rows.columns.pp
    nodes = -(-rows.columns.gpus // on_node)
    mean = _states(rows, partial(_of_all, rows)) * rows.stride / nodes
    whole = (rows.stride % on_node == 0) | (pp == 1)
    ends = _end_bytes(rows) * np.minimum(rows.stride, on_node)
    return np.asarray(np.maximum(mean, np.where(whole, ends, 0.0)))


def _end_bytes(rows: Rows) -> Array:
    """Of a rank at the fuller end of the pipeline."""
    first, last = rows.held[0], rows.held[-1]
    saved, ended = (rows.contents[at].total.away_bytes for at in (0, -1))
    zero, several = np.zeros_like(rows.columns.pp), rows.columns.virtual_stages > 1
    alone = ~(several | rows.columns.in_pairs)  # else chunks save unequal bytes
    leading = _states(rows, partial(rows.held_by, first))
    trailing = _states(rows, partial(rows.held_by, last))
    leading = leading + alone * saved * _alive(rows, zero)
    trailing = trailing + alone * ended * _alive(rows, rows.columns.pp - 1)
    there = rows.counts[-1] > 0  # a pipeline of one stage has the first end alone
    return np.maximum(leading, np.where(there, trailing, 0.0))


def _states(rows: Rows, held: Callable[[str], Array]) -> Array:
    return states_bytes(
        held("parameters"),
        held("expert_parameters"),
        held("frozen_parameters"),
        rows.parallel,
        rows.policy,
        rows.job.moments,
        rows.columns.offload,
        shards_are_masters=rows.on.software.fully_shard,
    )


def _of_all(rows: Rows, name: str) -> Array:
    """The sum over all virtual stages."""
    stages = zip(rows.counts, rows.held, strict=True)
    return np.asarray(sum(count * getattr(stage, name) for count, stage in stages))


def _alive(rows: Rows, rank: Array) -> Array:
    columns, found = rows.columns, np.zeros_like(rows.columns.pp)
    for code in np.unique(columns.schedule):
        count = peak_in_flight(
            SCHEDULES[code],
            rank,
            columns.pp,
            columns.virtual_stages,
            rows.micro_batches,
        )
        found = np.where(columns.schedule == code, count, found)
    return found
