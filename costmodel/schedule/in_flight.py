"""Micro-batches in flight: how many a rank holds saved activations of, at its peak.

Closed forms, counted in micro-batches of one virtual stage. They broadcast over NumPy
arrays of ranks, degrees and micro-batches, for one schedule at a time. Where the
chunks of a rank save unequal bytes, the peak in bytes is `timeline`'s to find.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from costmodel.schedule.schedules import SCHEDULES, require_schedule
from profiles.errors import InvalidSpec, UnknownName

IntArray = NDArray[np.int64]


def peak_in_flight(
    schedule: str,
    rank: ArrayLike,
    pp: ArrayLike,
    virtual_stages: ArrayLike,
    micro_batches: ArrayLike,
) -> IntArray:
    """Saved (chunk, micro-batch) pairs at the peak of pipeline rank *rank*.

    With one rank 1; else gpipe m, 1f1b and zb-h1 min(pp − rank, m), interleaved
    min(v·m, (v − 1)·pp + 2·(pp − 1 − rank) + 1): Megatron's warm-up and one more,
    zb-interleaved the same with one pp − 1 − rank; zb-v min(2·pp − 1 − rank, m) of the
    first chunk and min(rank + 1, m) of the second, dualpipe-v 2·pp + 1, chimera at most
    min(pp − s, pp/2, m/2) of each of its stages s. What I leaves for W is not counted.
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
    elif schedule in ("1f1b", "zb-h1"):
        alive = np.minimum(behind + 1, batches)
    elif schedule in ("interleaved", "zb-interleaved"):
        hop = 2 if schedule == "interleaved" else 1
        warm_up = (chunks - 1) * ranks + hop * behind
        alive = np.minimum(warm_up + 1, chunks * batches)
    elif schedule == "zb-v":
        alive = np.minimum(ranks + behind, batches) + np.minimum(own + 1, batches)
    elif schedule == "dualpipe-v":
        alive = 2 * ranks + 1
    elif schedule == "chimera":
        room = np.minimum(ranks, batches) // 2
        alive = np.minimum(ranks - own, room) + np.minimum(own + 1, room)
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

    Raises as `require_schedule`, and InvalidSpec where a rank's stages are not in turn.
    """
    require_schedule(schedule, pp, virtual_stages, micro_batches)
    known = SCHEDULES[schedule]
    if known.in_v or known.copies > 1:
        raise InvalidSpec(
            f"{schedule} does not go through its chunks in turn: simulate it, and ask "
            "its timeline"
        )
    rank = np.arange(pp)[:, None]
    alive = peak_in_flight(schedule, rank, pp, virtual_stages, micro_batches)
    if virtual_stages == 1:
        return np.array(alive)
    rounds, rest = np.divmod(alive, pp * virtual_stages)
    chunk = np.arange(virtual_stages)
    return rounds * pp + np.clip(rest - chunk * pp, 0, pp)
