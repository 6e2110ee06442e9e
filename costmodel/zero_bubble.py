"""Zero-bubble schedules of one direction: B is split, and W fills what was a bubble.

    zb-h1            1f1b whose W come `rank` micro-batches after their I, so that no
                     rank holds more than the first (Qi et al., ICLR 2024, section 3)
    zb-interleaved   the same over several chunks a rank

As PyTorch's ScheduleInterleavedZeroBubble, of one chunk and of several.
"""

from __future__ import annotations

import numpy as np

from costmodel.action import Kind
from costmodel.shape import IntArray, Shape


def zero_bubble(rank: int, shape: Shape) -> IntArray:
    """Fill; a forward, an I and an older W in turn; drain.

    Rank 1 of 2, 3 micro-batches: `1F0 1I0 1F1 1I1 1W0 1F2 1I2 1W1 1W2`.

    Op i of the turns is forward i + fill, I number i and W number i − rank; what does
    not exist is left out. So each pass has a place, three to an op.
    """
    numbers = np.arange(shape.virtual_stages * shape.micro_batches)
    turn, place = np.divmod(numbers, _round(shape))
    round_, chunk = np.divmod(turn, shape.virtual_stages)
    micro_batch = round_ * _round(shape) + place
    last = shape.virtual_stages - 1
    onward, back = chunk * shape.pp + rank, (last - chunk) * shape.pp + rank
    fill = min(last * shape.pp + shape.pp - 1 - rank, len(numbers))
    passes = [
        shape.code(Kind.F, onward, micro_batch),
        shape.code(Kind.I, back, micro_batch),
        shape.code(Kind.W, back, micro_batch),
    ]
    places = [3 * (numbers - fill), 3 * numbers + 1, 3 * (numbers + rank) + 2]
    order = np.argsort(np.concatenate(places))
    return np.asarray(np.concatenate(passes)[order])


def _round(shape: Shape) -> int:
    """Micro-batches that go through one chunk before the next one's turn."""
    return shape.pp if shape.virtual_stages > 1 else shape.micro_batches
