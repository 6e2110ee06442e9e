"""What the compute of an interleaved pipeline cannot beat: its longest paths.

Rank r passes forwards numbered k = 0 … n − 1 (n = v·m; pp micro-batches through each
chunk in turn) and does backward k after forward k + w, its warm-up w =
(v − 1)·pp + 2·(pp − 1 − r). Backwards counted from the end are a mirror image of the
forwards, so each *lead* has a *drain*. The paths:

    whole   down to rank r in chunk 0, the whole work of the rank, up
    turns   lead to forward w of rank e, turn there, up to a rank x <= e, along its
            stream, down to a rank e' >= x, turn there, and drain

Here from three kinds of stages: the first, the least of the middle ones, and the last,
along the streams of the first rank, the outer middle ranks and the last rank.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from profiles.arrays import Array


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Ends:
    """Seconds of a pass through the first, any middle and the last virtual stage."""

    first: Array
    middle: Array
    last: Array


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Shape:
    pp: Array
    chunks: Array
    micro_batches: Array
    transfer_s: Array

    def warm_up(self, rank: Array) -> Array:
        return np.asarray((self.chunks - 1) * self.pp + 2 * (self.pp - 1 - rank))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Rank:
    """One direction of a rank's passes, as a path meets them."""

    before_s: Array  # of the rank, in chunk 0
    work_s: Array  # all of its passes
    lead_s: Array  # up to and with the one that is turned at
    newest_s: Array  # one pass through its last chunk
    between_s: Array  # its passes but for the first w + 1 and the last one


def interleaved_bound_s(
    *,
    forward: Ends,
    backward: Ends,
    transfer_s: Array,
    pp: Array,
    chunks: Array,
    micro_batches: Array,
) -> Array:
    """Seconds that the compute of each candidate takes at least."""
    shape = _Shape(
        pp=pp, chunks=chunks, micro_batches=micro_batches, transfer_s=transfer_s
    )
    down = (_last_rank(forward, shape), _last_rank(backward, shape))
    most = _along(pp - 1, down, down, (forward, backward), shape)
    first = (_first_rank(forward, shape), _first_rank(backward, shape))
    most = np.maximum(most, _along(pp * 0, first, down, (forward, backward), shape))
    for rank in (pp * 0 + 1, pp - 2):
        middle = (
            _middle_rank(forward, shape, rank),
            _middle_rank(backward, shape, rank),
        )
        path = _along(rank, middle, down, (forward, backward), shape)
        most = np.maximum(most, np.where(pp > 2, path, 0.0))
    return np.asarray(most)


def _along(
    rank: Array,
    own: tuple[_Rank, _Rank],
    last: tuple[_Rank, _Rank],
    ends: tuple[Ends, Ends],
    shape: _Shape,
) -> Array:
    """The longest path along a rank's stream, turning there or at the last rank.

    Pairs are (forward, backward).
    """
    whole = sum(one.before_s + one.work_s for one in own)
    steps = shape.pp - 1 - rank
    stream = own[0].between_s + own[1].between_s
    for way, back in ((0, 1), (1, 0)):  # arrive, and the mirror image: leave
        here = own[way].lead_s + own[back].newest_s
        there = last[way].lead_s + last[back].newest_s
        between = steps * (ends[back].middle + shape.transfer_s)
        stream = stream + np.maximum(here, there + between)
    passes = shape.chunks * shape.micro_batches
    turns = np.where(shape.warm_up(rank) < passes - 1, stream, 0.0)
    return np.asarray(np.maximum(whole, turns))


def _first_rank(passes: Ends, shape: _Shape) -> _Rank:
    """Chunk 0 holds the first stage: it is passed 2·pp − 2 times before the turn."""
    pp, more, m = shape.pp, shape.chunks - 1, shape.micro_batches
    first, middle = passes.first, passes.middle
    ring = np.maximum(first + (pp - 1) * middle + pp * shape.transfer_s - pp * first, 0)
    rings = ring + (more - 1) * pp * shape.transfer_s
    work = m * (first + more * middle)
    lead = (2 * pp - 1) * first + more * pp * middle
    return _Rank(
        before_s=np.zeros(()),
        work_s=work,
        lead_s=lead + rings,
        newest_s=middle,
        between_s=work - lead - middle,
    )


def _middle_rank(passes: Ends, shape: _Shape, rank: Array) -> _Rank:
    middle, c = passes.middle, shape.transfer_s
    before = passes.first + (rank - 1) * middle + rank * c
    work = shape.micro_batches * shape.chunks * middle
    lead = (shape.warm_up(rank) + 1) * middle
    return _Rank(
        before_s=before,
        work_s=work,
        lead_s=before + lead + (shape.chunks - 1) * shape.pp * c,
        newest_s=middle,
        between_s=work - lead - middle,
    )


def _last_rank(passes: Ends, shape: _Shape) -> _Rank:
    """Its last chunk holds the last stage: the lead to it may jump 0, 1 … v − 1 times.

    A jump trades pp stages for pp passes of one stage; what is linear in the number
    of jumps is largest at an end, but the first jump alone may use the first stage.
    """
    pp, more, m, c = shape.pp, shape.chunks - 1, shape.micro_batches, shape.transfer_s
    first, middle, last = passes.first, passes.middle, passes.last
    stages = pp * shape.chunks
    lead = first + (stages - 2) * middle + (stages - 1) * c
    for jumps in (1, more):
        steps = np.maximum(first, middle) + (jumps - 1) * middle
        left = stages - 1 - jumps * pp
        path = (pp - 1) * steps + first + (left + jumps - 1) * middle + left * c
        lead = np.maximum(lead, path)
    work = m * (more * middle + last)
    return _Rank(
        before_s=np.asarray(first + (pp - 2) * middle + (pp - 1) * c),
        work_s=work,
        lead_s=lead + last,
        newest_s=last,
        between_s=work - more * pp * middle - 2 * last,
    )
