"""Micro-batches in flight: how many a rank holds saved activations of, at its peak.

Closed forms, counted in micro-batches of one virtual stage. They broadcast over NumPy
arrays of ranks, degrees and micro-batches, for one schedule at a time. Where the
chunks of a rank save unequal bytes, the peak in bytes is `timeline`'s to find.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from costmodel.schedule import SCHEDULES, require_schedule
from profiles.errors import UnknownName

IntArray = NDArray[np.int64]


def peak_in_flight(
    schedule: str,
    rank: ArrayLike,
    pp: ArrayLike,
    virtual_stages: ArrayLike,
    micro_batches: ArrayLike,
) -> IntArray:
    """Saved (chunk, micro-batch) pairs at the peak of pipeline rank *rank*.

    With one rank 1; else gpipe m, 1f1b min(pp − rank, m), and interleaved
    min(v·m, (v − 1)·pp + 2·(pp − 1 − rank) + 1): Megatron's warm-up and one more.
    Numbers that `require_schedule` refuses are not caught here.

    >>> int(peak_in_flight("1f1b", 0, 4, 1, 8))
    4
    >>> peak_in_flight("interleaved", np.arange(4), 4, 2, 8).tolist()
    [11, 9, 7, 5]

    Raises UnknownName.
    """
    own, ranks = np.asarray(rank), np.asarray(pp)
    chunks, batches = np.asarray(virtual_stages), np.asarray(micro_batches)
    behind = ranks - 1 - own
    if schedule == "gpipe":
        alive: Any = np.where(ranks > 1, batches, 1)
    elif schedule == "1f1b":
        alive = np.minimum(behind + 1, batches)
    elif schedule == "interleaved":
        warm_up = (chunks - 1) * ranks + 2 * behind
        alive = np.minimum(warm_up + 1, chunks * batches)
    else:
        raise UnknownName("schedule", schedule, SCHEDULES)
    shape = np.broadcast(own, ranks, chunks, batches).shape
    return np.broadcast_to(alive, shape)


def in_flight(
    schedule: str, pp: int, virtual_stages: int, micro_batches: int
) -> IntArray:
    """The same by chunk, shaped [pp, virtual_stages]: when a rank first peaks.

    A rank's first forwards go through chunk after chunk, pp micro-batches at a time.

    >>> in_flight("interleaved", 4, 2, 8).tolist()
    [[7, 4], [5, 4], [4, 3], [4, 1]]

    Raises as `require_schedule`.
    """
    require_schedule(schedule, pp, virtual_stages, micro_batches)
    rank = np.arange(pp)[:, None]
    alive = peak_in_flight(schedule, rank, pp, virtual_stages, micro_batches)
    if virtual_stages == 1:
        return np.array(alive)
    rounds, rest = np.divmod(alive, pp * virtual_stages)
    chunk = np.arange(virtual_stages)
    return rounds * pp + np.clip(rest - chunk * pp, 0, pp)
