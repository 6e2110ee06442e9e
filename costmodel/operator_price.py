"""Seconds and bytes of one operator under a layout: forward, backward, what it keeps.

matrix product   forward m×n×k, input gradient m×k×n, weight gradient k×n×m
attention        by kernel; context parallel exchanges beside it
everything else  bytes at measured bandwidth

Each pass as it was measured, where the machine has samples of it.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from costmodel.attention_price import attention_kernel, attention_work
from costmodel.compute import matmul_flops, matmul_s, traffic_s
from costmodel.local_shape import local_shape, worked_on
from costmodel.machine import Machine
from costmodel.placement import near_members
from costmodel.sharding import (
    Collective,
    Degrees,
    backward_collectives,
    elements,
    forward_collectives,
    parameters,
    product_shape,
    tensor_bytes,
    tokens,
)
from costmodel.sourced import Sourced
from costmodel.work import OperatorPrice, Work
from profiles.graph import Block
from profiles.operators import Kind, Operator
from profiles.precision import Precision

Array = NDArray[Any]
_ZERO = np.zeros(())

# The head of a vocabulary of 50257 runs at 85 TFLOP/s where one of 50260 / 2 columns
# runs at 216 on an A100 [fitted] vTrain's one-node runs, tp 1 against tp 2.
MISALIGNED = 2.5

# Elements that a norm in plain PyTorch moves: cast to fp32, square, mean, scale, cast
# back, weight; backward twice that. It keeps the fp32 input and the scaled output.
UNFUSED_NORM = (17.0, 34.0)  # [derived] in 16-bit elements
UNFUSED_NORM_SAVED_BYTES = 6.0  # [derived] a token and unit of width
_NOTHING = Sourced(seconds=_ZERO)


def operator_price(
    operator: Operator,
    block: Block,
    degrees: Degrees,
    precision: Precision,
    machine: Machine,
) -> OperatorPrice:
    """Price *operator*; arrays have the shape that *degrees* broadcasts to."""
    price = {Kind.MATMUL: _matmul, Kind.ATTENTION: attention_work}.get(
        operator.kind, _traffic
    )
    forward, backward = price(operator, block, degrees, precision, machine)
    host = machine.software
    floor = 1.0 if machine.has_host_floor else 0.0
    held = parameters(operator, block, degrees)
    forward += Work.of(
        _NOTHING,
        tensor_comm=_exchanged(
            forward_collectives(operator, block, degrees, precision),
            degrees,
            machine,
            _ZERO,
        ),
        host_s=host.forward_host_s * floor,
    )
    backward += Work.of(
        _NOTHING,
        tensor_comm=_exchanged(
            backward_collectives(operator, block, degrees, precision),
            degrees,
            machine,
            machine.hides(backward.compute_s / 2),
        ),
        host_s=host.backward_host_s * floor * operator.has_backward,
    )
    sizes = [tensor_bytes(item, block, degrees, precision) for item in operator.inputs]
    return OperatorPrice(
        forward=forward,
        backward=backward,
        parameters=np.zeros_like(held) if operator.frozen else held,
        frozen_parameters=held if operator.frozen else np.zeros_like(held),
        saved={
            item.name: tensor_bytes(item, block, degrees, precision)
            for item in operator.saves
            if not item.internal
        },
        internal=_internal(operator, block, degrees, precision, machine),
        output_bytes=tensor_bytes(operator.output, block, degrees, precision),
        input_bytes=sum(sizes, start=_ZERO),
    )


def _exchanged(
    collectives: Iterable[Collective],
    degrees: Degrees,
    machine: Machine,
    behind_s: Array,
) -> Sourced:
    """Exposed seconds of tp collectives; hidden ones cost what *behind_s* leaves."""
    near = near_members(np.asarray(1), degrees.tp, machine.island)
    total = _NOTHING
    for item in collectives:
        taken = machine.collective(
            item.kind, item.size_bytes, ranks=degrees.tp, near=near
        )
        total = total + (taken.behind(behind_s) if item.hidden else taken)
    return total


def _matmul(
    operator: Operator,
    block: Block,
    degrees: Degrees,
    precision: Precision,
    machine: Machine,
) -> tuple[Work, Work]:
    m, n, k = product_shape(operator, block, degrees)
    product_s = partial(
        matmul_s, device=machine.device, rates=machine.rates, number=precision.matmul
    )
    slower = misaligned(n, k)
    fused = machine.software.accumulation == "fused"
    made = precision.gradient.bytes if fused else precision.activation.bytes
    timed = partial(
        machine.operator, lambda: ("matmul", (m, n, k)), number=precision.matmul
    )
    forward = timed("forward", roofline=lambda: product_s(m, n, k) * slower)
    to_input = timed("backward-input", roofline=lambda: product_s(m, k, n) * slower)
    flops = matmul_flops(m, n, k)
    if operator.frozen:
        return Work.of(forward, flops=flops), Work.of(to_input, flops=flops)
    to_weight = timed(
        "backward-weight",
        roofline=lambda: product_s(k, n, m, output_bytes=made) * slower,
    )
    return (
        Work.of(forward, flops=flops),
        Work.of(to_input + to_weight, flops=2 * flops),
    )


def misaligned(n: Array, k: Array) -> Array:
    """How much longer a product takes whose weight has rows of no whole 16 bytes."""
    odd = (np.asarray(n) % 8 != 0) | (np.asarray(k) % 8 != 0)
    return np.where(odd, MISALIGNED, 1.0)


def _traffic(
    operator: Operator,
    block: Block,
    degrees: Degrees,
    precision: Precision,
    machine: Machine,
) -> tuple[Work, Work]:
    moved = elements(worked_on(operator), block, degrees) * precision.activation.bytes
    passes = (operator.forward_elements, operator.backward_elements)
    if operator.vectors and not machine.software.fused_norm:
        passes = UNFUSED_NORM
    local = partial(local_shape, operator, block, degrees)
    forward, backward = (
        Work.of(
            machine.operator(
                local,
                direction,
                precision.activation,
                partial(
                    traffic_s,
                    moved * count,
                    device=machine.device,
                    rates=machine.rates,
                    kernels=operator.kernels,
                ),
            )
        )
        for direction, count in zip(("forward", "backward"), passes, strict=True)
    )
    return forward, backward if operator.has_backward else Work()


def _internal(
    operator: Operator,
    block: Block,
    degrees: Degrees,
    precision: Precision,
    machine: Machine,
) -> dict[str, Array]:
    """What an operator keeps of its own making: masks, softmax, row statistics."""
    kept = {
        item.name: tensor_bytes(item, block, degrees, precision)
        for item in operator.saves
        if item.internal
    }
    if operator.vectors and not machine.software.fused_norm:
        count = elements(operator.output, block, degrees)
        kept[f"{operator.name}_copies"] = count * UNFUSED_NORM_SAVED_BYTES
    if operator.kind is Kind.ATTENTION:
        rows = -(-block.heads // degrees.tp) * tokens(degrees, split=False)
        if attention_kernel(degrees, machine).startswith("flash"):
            kept["attention_core"] = rows * 4.0  # log-sum-exp, fp32
        else:
            score = 2 * precision.activation.bytes + 1  # softmax, dropped, its mask
            kept["attention_core"] = rows * float(degrees.seq_len) * score
    return kept
