"""The attention core under a layout, and context parallelism's exchanges beside it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from costmodel.compute import alignment_slowdown, attention_flops, attention_s
from costmodel.context_exchange import messages
from costmodel.local_shape import is_whole, local_shape
from costmodel.machine import Machine
from costmodel.placement import changes_rail, near_members, shares
from costmodel.sharding import Degrees
from costmodel.sourced import Sourced
from costmodel.work import Work
from profiles.graph import Block
from profiles.measurable import number_of
from profiles.operators import Operator
from profiles.precision import Precision

Array = NDArray[Any]


def attention_kernel(degrees: Degrees, machine: Machine) -> str:
    """The kernel that this framework runs on this device."""
    wanted = machine.software.flash if degrees.flash_attention else None
    return wanted or machine.software.unfused


def falls_back(
    block: Block, degrees: Degrees, precision: Precision, machine: Machine
) -> Array:
    """Where the fused softmax does not run, and single kernels do.

    It works in 16 bits, on four rows of heads at a time (Megatron-LM, fused_softmax.py:
    is_kernel_available asks for heads / tp · micro-batch to be a multiple of 4).
    """
    heads = -(-block.heads // degrees.tp) * degrees.micro_batch
    fused = attention_kernel(degrees, machine) == "fused-softmax"
    return np.asarray(fused & ((heads % 4 != 0) | (precision.activation.bytes > 2)))


def attention_work(
    operator: Operator,
    block: Block,
    degrees: Degrees,
    precision: Precision,
    machine: Machine,
) -> tuple[Work, Work]:
    """Forward and backward of the core."""
    heads = -(-block.heads // degrees.tp) * degrees.micro_batch
    local = -(-degrees.seq_len // degrees.cp)
    # Of whole rows, a window or not.
    in_blocks = (degrees.cp > 1) & (degrees.cp_kind == "rsa")
    window = np.where(in_blocks, degrees.seq_len, _window(block, degrees))
    shape = {
        "batch_heads": heads,
        "seq_q": local,
        "seq_kv": window,
        "head_dim": np.asarray(block.head_dim),
    }
    once = {**shape, "seq_kv": np.where(in_blocks, local, window)}
    times = np.where(in_blocks, degrees.cp, 1)
    # A window shorter than the sequence is a band: no half of it is masked.
    causal = block.causal & (window == degrees.seq_len)
    number = number_of(operator, precision)
    of_sequence, share = _whole_sequence(degrees)
    works = []
    for direction, scale in (("forward", 1.0), ("backward", 2.5)):

        def kernel_s(kernel: str, direction: str = direction) -> Array:
            one_s = attention_s(
                kernel,
                direction,
                causal=causal,
                device=machine.device,
                rates=machine.rates,
                number=number,
                slowdown=alignment_slowdown(block.head_dim, machine.device, number),
                **once,
            )
            return one_s * times

        def roofline(kernel_s: Callable[[str], Array] = kernel_s) -> Array:
            found = kernel_s(attention_kernel(degrees, machine))
            slow = falls_back(block, degrees, precision, machine)
            if not slow.any():
                return found
            return np.where(slow, kernel_s("materialised"), found)

        taken = machine.operator(
            partial(local_shape, operator, block, of_sequence),
            direction,
            number,
            roofline,
            where=is_whole(block, degrees) & ~in_blocks,
            share=share,
        )
        works.append(
            Work.of(
                taken,
                context_comm=_exchanged(
                    direction, taken.seconds, block, degrees, precision, machine
                ),
                flops=scale * attention_flops(causal=causal, **shape),
            )
        )
    return works[0], works[1]


def _window(block: Block, degrees: Degrees) -> int:
    """How many keys a query looks at, at most."""
    return min(block.window or degrees.seq_len, degrees.seq_len)


def _whole_sequence(degrees: Degrees) -> tuple[Degrees, Array]:
    """Degrees under which a rank attends in whole sequences, and how much of that a
    rank of cp does: all of its heads (Ulysses), or as much of the triangle as every
    other rank (zig-zag)."""
    one = np.ones_like(degrees.cp)
    if degrees.cp_kind == "ulysses":
        return replace(degrees, tp=degrees.tp * degrees.cp, cp=one), np.ones(())
    return replace(degrees, cp=one), 1.0 / degrees.cp


def _exchanged(
    direction: str,
    attention: Array,
    block: Block,
    degrees: Degrees,
    precision: Precision,
    machine: Machine,
) -> Sourced:
    """Exposed seconds of exchanging keys and values between cp ranks.

    Each round of a ring lies behind one block of attention. A causal mask is cut so
    that all ranks have as much of it (each a part of the sequence's head and of its
    tail: zig-zag), or by heads. Ring self-attention waits for every block: a row of
    scores has to be whole before its softmax, and its code stops for each transfer
    (Colossal-AI, communication/ring.py).
    """
    cp, island = degrees.cp, machine.island
    near = near_members(degrees.tp, cp, island)
    ways: dict[str, Any] = {
        "ranks": cp,
        "near": near,
        "shares": shares(island.domain // near, island),  # of each ring one leaves
        "changes_rail": changes_rail(degrees.tp, island),
    }
    sent = messages(direction, block, degrees, precision)
    if degrees.cp_kind == "ring":
        (keys,) = sent
        rounds = np.maximum(cp - 1, 1)
        step = machine.shift(keys.size_bytes, keys.times // rounds, **ways)
        return step.behind(machine.hides(attention / cp)) * (cp - 1.0)
    total = Sourced(seconds=np.zeros(()))
    for one in sent:
        if one.kind == "send":
            taken = machine.shift(one.size_bytes, np.ones(()), **ways)
        else:
            taken = machine.collective(one.kind, one.size_bytes, ranks=cp, near=near)
        total = total + taken * one.times
    return total.where(cp > 1)
