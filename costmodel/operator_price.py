"""Seconds and bytes of one operator under a layout: forward, backward, what it keeps.

matrix product   forward m×n×k, input gradient m×k×n, weight gradient k×n×m
attention        by kernel; context parallel exchanges beside it
everything else  bytes at measured bandwidth
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from costmodel.compute import (
    alignment_slowdown,
    attention_flops,
    attention_s,
    matmul_flops,
    matmul_s,
    traffic_s,
)
from costmodel.machine import Machine
from costmodel.placement import near_members
from costmodel.sharding import (
    Collective,
    Degrees,
    backward_collectives,
    elements,
    extent,
    forward_collectives,
    parameters,
    product_shape,
    tensor_bytes,
    tokens,
)
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


def _zero() -> Array:
    return _ZERO


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """One pass of an operator: seconds on the device and waiting, FLOPs done."""

    compute_s: Array = field(default_factory=_zero)
    tensor_comm_s: Array = field(default_factory=_zero)
    context_comm_s: Array = field(default_factory=_zero)
    flops: Array = field(default_factory=_zero)
    host_s: float = 0.0

    def __add__(self, other: Work) -> Work:
        return Work(
            compute_s=self.compute_s + other.compute_s,
            tensor_comm_s=self.tensor_comm_s + other.tensor_comm_s,
            context_comm_s=self.context_comm_s + other.context_comm_s,
            flops=self.flops + other.flops,
            host_s=self.host_s + other.host_s,
        )

    @property
    def device_s(self) -> Array:
        return self.compute_s + self.tensor_comm_s + self.context_comm_s

    @property
    def total_s(self) -> Array:
        """Device time over the host's launch floor, softly: some kernels are bound
        by the host, others not (fourth-power mean; docs/cost-model.md)."""
        return np.asarray((self.device_s**4 + self.host_s**4) ** 0.25)


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorPrice:
    """One operator's work, local parameters and bytes by saved tensor's name."""

    forward: Work
    backward: Work
    parameters: Array
    saved: dict[str, Array]
    internal: dict[str, Array]  # dropped together with the operator's own working
    output_bytes: Array
    input_bytes: Array


def operator_price(
    operator: Operator,
    block: Block,
    degrees: Degrees,
    precision: Precision,
    machine: Machine,
) -> OperatorPrice:
    """Price *operator*; arrays have the shape that *degrees* broadcasts to."""
    price = {Kind.MATMUL: _matmul, Kind.ATTENTION: _attention}.get(
        operator.kind, _traffic
    )
    forward, backward = price(operator, block, degrees, precision, machine)
    host = machine.software
    forward += Work(
        tensor_comm_s=_exchanges_s(
            forward_collectives(operator, block, degrees, precision),
            degrees,
            machine,
            _ZERO,
        ),
        host_s=host.forward_host_s,
    )
    backward += Work(
        tensor_comm_s=_exchanges_s(
            backward_collectives(operator, block, degrees, precision),
            degrees,
            machine,
            backward.compute_s / 2,
        ),
        host_s=host.backward_host_s,
    )
    sizes = [tensor_bytes(item, block, degrees, precision) for item in operator.inputs]
    return OperatorPrice(
        forward=forward,
        backward=backward,
        parameters=parameters(operator, block, degrees),
        saved={
            item.name: tensor_bytes(item, block, degrees, precision)
            for item in operator.saves
            if not item.internal
        },
        internal=_internal(operator, block, degrees, precision, machine),
        output_bytes=tensor_bytes(operator.output, block, degrees, precision),
        input_bytes=sum(sizes, start=_ZERO),
    )


def _exchanges_s(
    collectives: Iterable[Collective],
    degrees: Degrees,
    machine: Machine,
    behind_s: Array,
) -> Array:
    """Exposed seconds of tp collectives; hidden ones cost what *behind_s* leaves."""
    near = near_members(np.asarray(1), degrees.tp, machine.island)
    total: Array = _ZERO
    for item in collectives:
        taken = machine.collective_s(
            item.kind, item.size_bytes, ranks=degrees.tp, near=near
        )
        total = total + (np.maximum(taken - behind_s, 0) if item.hidden else taken)
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
    forward_s = product_s(m, n, k) * slower
    input_s = product_s(m, k, n) * slower
    fused = machine.software.accumulation == "fused"
    made = precision.gradient.bytes if fused else precision.activation.bytes
    weight_s = product_s(k, n, m, output_bytes=made) * slower
    flops = matmul_flops(m, n, k)
    return (
        Work(compute_s=forward_s, flops=flops),
        Work(compute_s=input_s + weight_s, flops=2 * flops),
    )


def misaligned(n: Array, k: Array) -> Array:
    """How much longer a product takes whose weight has rows of no whole 16 bytes."""
    odd = (np.asarray(n) % 8 != 0) | (np.asarray(k) % 8 != 0)
    return np.where(odd, MISALIGNED, 1.0)


def attention_kernel(degrees: Degrees, machine: Machine) -> str:
    """The kernel that this framework runs on this device."""
    wanted = machine.software.flash if degrees.flash_attention else None
    return wanted or machine.software.unfused


def _attention(
    operator: Operator,
    block: Block,
    degrees: Degrees,
    precision: Precision,
    machine: Machine,
) -> tuple[Work, Work]:
    heads = -(-block.heads // degrees.tp) * degrees.micro_batch
    local = -(-degrees.seq_len // degrees.cp)
    window = min(block.window or degrees.seq_len, degrees.seq_len)
    shape = {
        "batch_heads": heads,
        "seq_q": local,
        "seq_kv": np.asarray(window),
        "head_dim": np.asarray(block.head_dim),
    }
    # A window shorter than the sequence is a band: no half of it is masked.
    causal = block.causal and window == degrees.seq_len
    number = _attention_format(precision)
    works = []
    for direction, scale in (("forward", 1.0), ("backward", 2.5)):
        taken = attention_s(
            attention_kernel(degrees, machine),
            direction,
            causal=causal,
            device=machine.device,
            rates=machine.rates,
            number=number,
            slowdown=alignment_slowdown(block.head_dim, machine.device, number),
            **shape,
        )
        works.append(
            Work(
                compute_s=taken,
                context_comm_s=_context_s(
                    direction, taken, block, degrees, precision, machine
                ),
                flops=scale * attention_flops(causal=causal, **shape),
            )
        )
    return works[0], works[1]


def _attention_format(precision: Precision) -> Any:
    """Attention stays in 16 bits when the products run in fewer."""
    return precision.activation if precision.matmul.bytes < 2 else precision.matmul


def _context_s(
    direction: str,
    attention: Array,
    block: Block,
    degrees: Degrees,
    precision: Precision,
    machine: Machine,
) -> Array:
    """Exposed seconds of exchanging keys and values between cp ranks.

    ring: cp − 1 transfers of the local keys and values (backward: and of their
    gradients), each behind one block of attention (Liu et al., 2023). all-gather:
    gathered before, gradients reduce-scattered after (Llama 3, section 3.3.2).
    ulysses: all-to-all of q, k, v and of the output (Jacobs et al., 2023).
    """
    cp = degrees.cp
    rounds = 1 if direction == "forward" else 2
    near = near_members(degrees.tp, cp, machine.island)
    width = extent("key_value", block, degrees) * precision.activation.bytes
    local = tokens(degrees, split=False)
    if degrees.cp_kind == "ring":
        far = near < cp
        step = machine.send_s(local * width * rounds, far=far)
        return np.where(cp > 1, (cp - 1) * np.maximum(step - attention / cp, 0), 0.0)
    if degrees.cp_kind == "all-gather":
        kinds = ("all_gather",) if rounds == 1 else ("all_gather", "reduce_scatter")
        size = local * cp * width
    else:
        kinds = ("all_to_all",) * 2
        query = extent("query", block, degrees) * precision.activation.bytes
        size = local * cp * (width + 2 * query) / 2
    taken = (machine.collective_s(kind, size, ranks=cp, near=near) for kind in kinds)
    return np.where(cp > 1, sum(taken, start=_ZERO), 0.0)


def _traffic(
    operator: Operator,
    block: Block,
    degrees: Degrees,
    precision: Precision,
    machine: Machine,
) -> tuple[Work, Work]:
    moved_from = (
        operator.output
        if operator.kind is not Kind.CROSS_ENTROPY
        else (operator.inputs[0])
    )
    count = elements(moved_from, block, degrees) * precision.activation.bytes
    elements_moved = (operator.forward_elements, operator.backward_elements)
    if operator.vectors and not machine.software.fused_norm:
        elements_moved = UNFUSED_NORM
    works = (
        Work(
            compute_s=traffic_s(
                count * passes,
                device=machine.device,
                rates=machine.rates,
                kernels=operator.kernels,
            )
        )
        for passes in elements_moved
    )
    forward, backward = works
    return forward, backward


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
