"""What each pass costs: tables that a program's rows index.

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

import numpy as np

from costmodel.shape import COMPUTE
from costmodel.stage_costs import FloatArray, StageCosts


def seconds_of(costs: StageCosts, copies: int) -> FloatArray:
    """Seconds of each row's pass."""
    forward, backward = costs.forward_s, costs.backward_s
    weight = costs.optional("weight_s")
    hidden = backward - costs.optional("hidden_s")
    return _table([forward, backward, backward - weight, weight, hidden], copies)


def sends_of(costs: StageCosts, copies: int) -> FloatArray:
    """Seconds of the transfer that follows each row's pass."""
    onward, back = costs.send_forward_s, costs.send_backward_s
    return _table([onward, back, back, np.zeros_like(back), back], copies)


def bytes_after(costs: StageCosts, copies: int) -> FloatArray:
    """What each row's pass adds to the bytes that stay."""
    saved, kept = costs.saved_bytes, costs.optional("weight_bytes")
    return _table([saved, -saved, kept - saved, -kept, -saved], copies)


def bytes_during(costs: StageCosts, copies: int) -> FloatArray:
    """What is alive during each row's pass beside what is alive after it."""
    saved, kept = costs.saved_bytes, costs.optional("weight_bytes")
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
