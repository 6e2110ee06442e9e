"""What the compute of an interleaved pipeline cannot beat: its longest paths.

Rank r passes forwards numbered k = 0 … n − 1 (n = v·m; pp micro-batches through each
chunk in turn) and does backward k after forward k + w, its warm-up w =
(v − 1)·pp + 2·(pp − 1 − r). Backwards counted from the end are a mirror image of the
forwards, so each *lead* has a *drain*. The paths:

    whole   down to rank r in chunk 0, the whole work of the rank, up
    turns   lead to forward w of rank e, turn there, up to a rank x <= e, along its
            stream, down to a rank e' >= x, turn there, and drain
"""

from __future__ import annotations

import numpy as np

from costmodel.stage_line import Array, Line, exclusive_sum

_NEVER = -np.inf


def interleaved_bound_s(stages: Line, chunks: int, micro_batches: int) -> Array:
    """As `makespan.makespan_bound_s`, for arrays [..., stages]."""
    pp = stages.forward_s.shape[-1] // chunks
    shape = (*stages.forward_s.shape[:-1], chunks, pp)
    forward, backward = (
        stages.forward_s.reshape(shape),
        stages.backward_s.reshape(shape),
    )
    work = micro_batches * (forward + backward).sum(axis=-2)
    whole = stages.before_s[..., :pp] + work + stages.after_s[..., :pp]
    turns = _turns(stages, forward, backward, micro_batches)
    return np.asarray(np.maximum(whole.max(axis=-1), turns.max(axis=-1)))


def _turns(stages: Line, forward: Array, backward: Array, micro_batches: int) -> Array:
    """[..., x]: the longest path that goes along the stream of rank x."""
    chunks, pp = forward.shape[-2:]
    last = micro_batches * chunks - 1
    rank = np.arange(pp)
    warm_up = (chunks - 1) * pp + 2 * (pp - 1 - rank)
    # Forward w of a rank, and backward w counted from the end, are of this chunk.
    reached = np.minimum(warm_up // pp % chunks, chunks - 1)
    can_turn = warm_up <= last
    lead = _lead(stages.forward_s, stages.down_s, chunks) + forward[..., reached, rank]
    drain = _lead(stages.backward_s, stages.up_s, chunks) + backward[..., reached, rank]
    turn_up = np.where(can_turn, lead + backward[..., -1, :], _NEVER)
    turn_down = np.where(can_turn, drain + forward[..., -1, :], _NEVER)
    arrive = _best_below(turn_up, stages.after_s[..., -pp:])
    leave = _best_below(turn_down, stages.before_s[..., -pp:])
    between = _between(forward, warm_up, micro_batches) + _between(
        backward, warm_up, micro_batches
    )
    along = np.where(warm_up < last, arrive + between + leave, _NEVER)
    only = np.where(warm_up == last, lead + drain, _NEVER)  # one forward, one backward
    return np.maximum(along, only)


def _lead(pass_s: Array, send_s: Array, chunks: int) -> Array:
    """[..., e]: seconds before forward w of rank e, over forwards alone.

    In round 0 the forward of micro-batch i on stage s comes after those of i on
    s − 1, of i − 1 on s, and (i = 0) of the last one on s − pp: the same rank's chunk
    before. A path to (0, s) has j such *jumps*, each after pp − 1 steps along one
    stage. The last 2·(pp − 1 − e) steps are along one stage too; ranks for which they
    do not fit in the round are left out.
    """
    stages = pass_s.shape[-1]
    pp = stages // chunks
    down = exclusive_sum(pass_s + send_s)
    steps = (pp - 1) * pass_s - down
    at = best = down
    for _ in range(chunks - 1):
        jump = np.maximum.accumulate(at + steps, axis=-1) + down + pass_s
        landed = jump[..., :-pp] - down[..., pp:]
        at = np.full_like(down, _NEVER)
        at[..., pp:] = np.maximum.accumulate(landed, axis=-1) + down[..., pp:]
        best = np.maximum(best, at)
    rank = np.arange(pp)
    ahead = 2 * (pp - 1 - rank)[:, None]
    there = np.arange(stages) <= (stages - pp + rank)[:, None]
    along = (best - down)[..., None, :] + ahead * pass_s[..., None, :]
    along = np.where(there & (ahead < pp), along, _NEVER)
    return np.asarray(along.max(axis=-1) + down[..., -pp:])


def _between(pass_s: Array, warm_up: Array, micro_batches: int) -> Array:
    """A rank's passes but for the first w + 1 and the last one."""
    chunks, pp = pass_s.shape[-2:]
    rounds, rest = np.divmod(warm_up + 1, pp * chunks)
    chunk = np.arange(chunks)[:, None]
    done = rounds * pp + np.clip(rest - chunk * pp, 0, pp)
    left = micro_batches - done
    return np.asarray((left * pass_s).sum(axis=-2) - pass_s[..., -1, :])


def _best_below(turn: Array, distance: Array) -> Array:
    """For each rank x the best *turn* at a rank e >= x, and the way between."""
    best = np.maximum.accumulate((turn + distance)[..., ::-1], axis=-1)[..., ::-1]
    return np.asarray(best - distance)
