"""What the virtual stages of a pipeline cost: the input of the timeline.

What each pass costs: tables that a program's rows index.

A row numbers (kind, slot) as `shape` codes them, and the last entry of each table, 0,
is that of row -1, no pass at all.

           seconds               sends       alive after     and during, beside that
    F      forward               forward     + saved         working
    B      backward              backward    - saved         saved, working
    I      backward - weight     backward    - saved + kept  what of saved is not kept,
                                                             working
    W      weight                nothing     - kept          kept
    F + B  of B what is left     backward    - saved         saved, working
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from costmodel.schedule import COMPUTE

FloatArray = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StageCosts:
    """Seconds and bytes of one micro-batch, by virtual stage in model order.

    `send_forward_s[s]` carries activations from stage s to s + 1, `send_backward_s[s]`
    gradients from s to s − 1; between stages of one rank they are not used.
    `saved_bytes` are taken as a forward starts and freed as its backward ends, the
    transient bytes are alive only during the pass. Where a schedule splits the
    backward, W takes `weight_s` of `backward_s` and I the rest, and `weight_bytes` are
    alive from I to W; `hidden_s` is what a backward saves that runs at once with a
    forward. `reduce_s` is the gradient reduction of a stage, done in `buckets` equal
    pieces as the last backward makes them, or after the rank's last backward unless
    `overlap_reduce`.

    `turns` ranks share a core (`costmodel.timeline.processor_sharing`); where they do,
    nothing is hidden, so that `overlap_reduce` does not go with it. The share
    *messages* of all passes is no faster where others wait.

    By pipeline rank: the optimizer's `step_s`, before which all ranks have reduced (the
    global gradient norm), and the `gather_s` of updated parameters after it (ZeRO-1).
    Without a flush a rank waits for nobody, but for those that share parameters with
    it, where any ranks update `together`.
    """

    forward_s: FloatArray
    backward_s: FloatArray
    weight_s: FloatArray
    weight_bytes: FloatArray
    hidden_s: FloatArray
    send_forward_s: FloatArray
    send_backward_s: FloatArray
    saved_bytes: FloatArray
    transient_forward_bytes: FloatArray
    transient_backward_bytes: FloatArray
    reduce_s: FloatArray
    step_s: FloatArray
    gather_s: FloatArray
    buckets: NDArray[np.int64] | int = 1  # of each stage, or of all
    overlap_reduce: bool = True
    turns: float = 1.0
    messages: float = 0.0
    together: tuple[int, ...] = ()


def seconds_of(costs: StageCosts, copies: int) -> FloatArray:
    """Seconds of each row's pass."""
    forward, backward, weight = costs.forward_s, costs.backward_s, costs.weight_s
    hidden = backward - costs.hidden_s
    return _table([forward, backward, backward - weight, weight, hidden], copies)


def sends_of(costs: StageCosts, copies: int) -> FloatArray:
    """Seconds of the transfer that follows each row's pass."""
    onward, back = costs.send_forward_s, costs.send_backward_s
    return _table([onward, back, back, np.zeros_like(back), back], copies)


def bytes_after(costs: StageCosts, copies: int) -> FloatArray:
    """What each row's pass adds to the bytes that stay."""
    saved, kept = costs.saved_bytes, costs.weight_bytes
    return _table([saved, -saved, kept - saved, -kept, -saved], copies)


def bytes_during(costs: StageCosts, copies: int) -> FloatArray:
    """What is alive during each row's pass beside what is alive after it."""
    saved, kept = costs.saved_bytes, costs.weight_bytes
    backward = costs.transient_backward_bytes
    whole = saved + backward
    inputs = np.maximum(saved - kept, 0) + backward
    return _table([costs.transient_forward_bytes, whole, inputs, kept, whole], copies)


def transient_of(
    forward: FloatArray, backward: FloatArray, copies: int = 1
) -> FloatArray:
    """The working set of each row's pass; W works on what I has kept for it."""
    return _table(
        [forward, backward, backward, np.zeros_like(backward), backward], copies
    )


def _table(kinds: list[FloatArray], copies: int) -> FloatArray:
    assert len(kinds) == len(COMPUTE)
    rows = [kind for kind in kinds for _ in range(copies)]
    return np.concatenate([*rows, np.zeros(1)])
