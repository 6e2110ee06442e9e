"""Zero-bubble schedules of one direction: B is split, and W fills what was a bubble.

    zb-h1            1f1b whose W come `rank` micro-batches after their I, so that no
                     rank holds more than the first (Qi et al., ICLR 2024, section 3)
    zb-interleaved   the same over several chunks a rank

As PyTorch's ScheduleInterleavedZeroBubble, of one chunk and of several.

Schedules in a V: rank r holds stages r and 2·pp − 1 − r, its chunks 0 and 1.

The last stage lies beside the first, so a rank's backward can begin early, and ranks
hold alike.

    zb-v         I and W apart; no bubble where F, I and W take equally long
                 (Qi et al., ICLR 2024, section 6)
    dualpipe-v   a forward of one chunk at once with a backward of the other
                 (DeepSeek-V3, arXiv 2412.19437; github.com/deepseek-ai/DualPipe)

Orders as PyTorch's ScheduleZBVZeroBubble and ScheduleDualPipeV.
"""

from __future__ import annotations

from collections import Counter, deque

import numpy as np

from costmodel.schedule.action import IntArray, Kind, Shape


class _Stream:
    """A rank's stream being written; a chunk's micro-batches count up by themselves."""

    def __init__(self, rank: int, shape: Shape) -> None:
        self.shape = shape
        self.stages = (rank, shape.stages - 1 - rank)
        self.count: Counter[tuple[Kind, int]] = Counter()
        self.codes: list[int] = []
        self.pending: deque[tuple[int, int]] = deque()  # (chunk, micro-batch) of W

    def forward(self, chunk: int) -> None:
        self._next(Kind.F, Kind.F, chunk)

    def backward(self, chunk: int, kind: Kind = Kind.B) -> None:
        """B, I or a B that runs at once with the forward before it."""
        self._next(kind, Kind.B, chunk)

    def inputs(self, chunk: int) -> None:
        """I, whose W waits."""
        self.pending.append((chunk, self.count[Kind.B, chunk]))
        self.backward(chunk, Kind.I)

    def weights(self, chunk: int | None = None) -> None:
        """The oldest W that waits, if one does: of any chunk, or of *chunk*."""
        for item in self.pending:
            if chunk in (None, item[0]):
                self.pending.remove(item)
                self._write(Kind.W, *item)
                return

    def _next(self, kind: Kind, counted: Kind, chunk: int) -> None:
        self._write(kind, chunk, self.count[counted, chunk])
        self.count[counted, chunk] += 1

    def _write(self, kind: Kind, chunk: int, micro_batch: int) -> None:
        if micro_batch < self.shape.micro_batches:
            self.codes.append(self.shape.code(kind, self.stages[chunk], micro_batch))


def zb_v(rank: int, shape: Shape) -> IntArray:
    """Fill both chunks, a forward, an I and its W in turn, drain with I, then W.

    Written for the 2·pp − 1 micro-batches that fill the pipeline, or more; of fewer,
    the others are left out.
    """
    pp, stream = shape.pp, _Stream(rank, shape)
    most, count = max(2 * pp - 1, shape.micro_batches), stream.count
    for _ in range(2 * (pp - rank) - 1):
        stream.forward(0)
    for _ in range(rank):
        stream.forward(1)
        stream.forward(0)
    for _ in range(pp - rank):
        stream.forward(1)
        _inputs_and_weights(stream, 1)
    while count[Kind.F, 1] < count[Kind.F, 0] or count[Kind.F, 0] < most:
        if count[Kind.F, 0] < most:
            stream.forward(0)
        _inputs_and_weights(stream, 0)
        stream.forward(1)
        _inputs_and_weights(stream, 1)
    for _ in range(rank):
        stream.inputs(0)
        stream.inputs(1)
    for _ in range(pp - rank):
        stream.inputs(0)
        stream.weights(0)
    for chunk in (1, 0):
        while any(item[0] == chunk for item in stream.pending):
            stream.weights(chunk)
    return np.array(stream.codes)


def _inputs_and_weights(stream: _Stream, chunk: int) -> None:
    stream.inputs(chunk)
    stream.weights(chunk)


def dualpipe_v(rank: int, shape: Shape) -> IntArray:
    """Eight phases, as DualPipe's code numbers them.

    Fill chunk 0, both chunks, turn at chunk 1; then forward and backward at once; then
    drain, B until half of a rank's last backwards, I from there on.
    """
    stream, behind = _Stream(rank, shape), shape.pp - 1 - rank
    for _ in range(2 * behind):
        stream.forward(0)
    for _ in range(rank + 1):
        stream.forward(0)
        stream.forward(1)
    for _ in range(behind):
        _inputs_and_weights(stream, 1)
        stream.forward(1)
    for turn in range(shape.micro_batches - 2 * shape.pp + rank + 1):
        stream.forward(0)
        at_once = turn > 0 or behind > 0  # the last rank's first pair is not
        stream.backward(1, Kind.OVERLAP_F_B if at_once else Kind.B)
        _forward_and_backward(stream)
    for _ in range(behind):
        stream.backward(1)
        _forward_and_backward(stream)
    whole = rank + 1  # backwards of the last 2 · (rank + 1) that stay whole
    for turn in range(2 * (rank + 1)):
        _last_backward(stream, 1 - turn % 2, split=turn >= whole)
    for _ in range(behind):
        stream.weights()
        _last_backward(stream, 0, split=True)
    for _ in range(rank + 1):
        stream.weights()
    return np.array(stream.codes)


def _forward_and_backward(stream: _Stream) -> None:
    stream.forward(1)
    stream.backward(0, Kind.OVERLAP_F_B)


def _last_backward(stream: _Stream, chunk: int, *, split: bool) -> None:
    if split:
        stream.inputs(chunk)
    else:
        stream.backward(chunk)


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
