"""Seconds of making the 8- and 4-bit operands of products from 16-bit tensors.

input, output's gradient   each is read, and written for either direction it is used in
weight                     the same, or once a step (`stages.optimizer_step`)
maximum                    read once more for NVFP4, whose scales of 16 numbers have 8
                           bits themselves and one of the tensor above them

statistics                 read twice more for S2FP8: the mean and the largest logarithm

(Transformer Engine's recipes. That current scaling of fp8 needs a maximum is part of
`quantise_bytes`: norms and activations find theirs as they write.)
"""

from __future__ import annotations

from typing import Any

import numpy as np

from costmodel.layout import Placement
from costmodel.machine import Machine, Sourced, traffic_s
from costmodel.operators.degrees import Degrees
from costmodel.operators.sharding import made, splits_columns
from profiles.arrays import Array
from profiles.hardware import Format
from profiles.models import Kind, Operator
from profiles.samples import SIXTEEN_BITS

# An 8-bit operand that is there for one direction (quantised before it was gathered, or
# one kernel after another) is turned for the other: read and written once more, whole.
TURNED = 2  # bytes
_NOTHING = Sourced(seconds=np.zeros(()))


def quantise_bytes(number: Format, machine: Machine, *, shifted: bool = False) -> float:
    """Bytes that quantising moves for an element, read in 16 bits and written twice."""
    scanned = SIXTEEN_BITS * ((number is Format.NVFP4) + 2 * shifted)
    narrower = 2 * (Format.FP8.bytes - number.bytes)
    return machine.framework.fp8.quantise_bytes - narrower + scanned


def quantised(
    operator: Operator,
    shape: tuple[Array, Array, Array],
    degrees: Degrees,
    number: Format,
    machine: Machine,
    groups: Any = 1,
    shifted: bool = False,
) -> tuple[Sourced, Sourced]:
    """Seconds of making the operands of *groups* products of *shape* in *number*,
    forward and backward; *shifted*: as S2FP8 has them."""
    if number.bytes >= SIXTEEN_BITS:
        return _NOTHING, _NOTHING
    m, n, k = shape
    habits, each = (
        machine.framework.fp8,
        quantise_bytes(number, machine, shifted=shifted),
    )
    of_input = of_output = np.asarray(each)
    whole = operator.kind is not Kind.GROUPED_MATMUL
    if habits.gathers and degrees.sequence_parallel and whole:
        gathered = np.where(degrees.tp > 1, (each - 1) / degrees.tp + TURNED, each)
        partial_sums = made(operator, degrees.sequence_parallel) is Placement.PARTIAL
        of_input = gathered if splits_columns(operator) else of_input
        of_output = gathered if partial_sums else of_output
    of_weight = 0.0 if habits.casts_weights_once else each
    moved = [m * k * of_input + n * k * of_weight, m * n * of_output]
    if habits.quantises_again:
        moved[1] = moved[1] + (m * k + n * k) * (each + TURNED) + m * n * TURNED
    forward, backward = (
        Sourced(
            seconds=traffic_s(groups * size, device=machine.device, rates=machine.rates)
        )
        for size in moved
    )
    return forward, backward
