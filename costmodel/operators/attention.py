"""The attention core under a layout, and context parallelism's exchanges beside it.

What context parallelism sends for the core of attention: one rule, two readers.

ring         forward: keys and values to the next rank, cp − 1 times; backward: those
             and their gradients (Liu et al., 2023)
all-gather   keys and values gathered before each pass, their gradients
             reduce-scattered after (Llama 3, section 3.3.2)
ulysses      all-to-all of queries, keys and values and of the output, and of their
             gradients (Jacobs et al., 2023); key-value heads fewer than cp are
             repeated, so that each rank has one
rsa          keys go round for whole rows of scores, then values; backward: both again,
             and their gradients, made over the whole sequence, are all-reduced (ring
             self-attention, Li et al., ACL 2023, section 3.2): 8(cp − 1)·b·s/cp·h
             elements a layer

A ring computes in cp kernels, one for each block of keys: under a causal mask the first
is a triangle, and every other half a square, all queries with half of the keys or the
other way round (zig-zag). What each makes is added to what there is: outputs forward,
gradients of queries, keys and values backward, which are read, read and written
(Transformer Engine, context_parallel.py: AttnFuncWithCPAndKVP2P).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from costmodel.machine import (
    AttentionShape,
    Machine,
    Sourced,
    alignment_slowdown,
    attention_flops,
    attention_s,
    changes_rail,
    near_members,
    shares,
    traffic_s,
)
from costmodel.operators.degrees import Degrees, scaled, tokens
from costmodel.operators.sharding import attended, extent, is_whole, local_shape
from costmodel.operators.work import OnRank, Work
from profiles.arrays import Array
from profiles.hardware import Format, Precision
from profiles.models import Block, Operator
from profiles.samples import number_of

ADDED = 3  # elements that adding one moves: it and the sum are read, the sum written


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """A collective over the cp axis, or a send to the next rank, so many times.

    `size_bytes` is of the full tensor; of an all-to-all or a send, what a rank holds.
    """

    kind: str
    size_bytes: Array
    times: Array


def messages(
    direction: str, block: Block, degrees: Degrees, precision: Precision
) -> tuple[Message, ...]:
    """What a rank of cp > 1 sends in a pass, "forward" or "backward"."""
    cp, forward = degrees.cp, direction == "forward"
    width = extent("key_value", block, degrees) * precision.activation.bytes
    local = tokens(degrees, split=False)
    if degrees.cp_kind == "ring":
        return (_message("send", local * width, (cp - 1) * (1 if forward else 2)),)
    if degrees.cp_kind == "all-gather":
        kinds = ("all_gather",) if forward else ("all_gather", "reduce_scatter")
        return tuple(_message(kind, local * cp * width) for kind in kinds)
    if degrees.cp_kind == "rsa":
        round_twice = _message("send", local * width / 2, 2 * (cp - 1))
        summed = _message("all_reduce", local * cp * width / 2, 2)
        return (round_twice,) if forward else (round_twice, summed)
    query = extent("query", block, degrees) * precision.activation.bytes
    one_each = 2 * cp * block.head_dim * precision.activation.bytes
    packed = local * (query + np.maximum(width, one_each))
    return (_message("all_to_all", packed), _message("all_to_all", local * query))


def _message(kind: str, size_bytes: Any, times: Any = 1) -> Message:
    return Message(
        kind=kind, size_bytes=np.asarray(size_bytes), times=np.asarray(times)
    )


def attention_kernel(degrees: Degrees, machine: Machine) -> str:
    """The kernel that this framework runs on this device."""
    wanted = machine.framework.kernels.flash if degrees.flash_attention else None
    return wanted or machine.framework.kernels.unfused


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


def attention_work(at: OnRank) -> tuple[Work, Work]:
    """Forward and backward of the core."""
    operator, block, degrees, precision, machine = at
    shape, number = _core(operator, block, degrees), number_of(operator, precision)
    of_sequence, share = _whole_sequence(degrees)
    works = []
    for direction, scale in (("forward", 1.0), ("backward", 2.5)):
        taken = machine.operator(
            partial(local_shape, operator, block, of_sequence),
            direction,
            number,
            partial(_pass_s, direction, shape, number, at),
            where=is_whole(operator, block, degrees) & ~_in_blocks(degrees),
            share=share,
        )
        exchanged = _exchanged(
            direction, taken.seconds, block, degrees, precision, machine
        )
        flops = scale * attention_flops(shape)
        works.append(Work.of(taken, context_comm=exchanged, flops=flops))
    return works[0], works[1]


def _in_blocks(degrees: Degrees) -> Array:
    """Where whole rows of scores are made, of one rank's keys after the other's."""
    return np.asarray((degrees.cp > 1) & (degrees.cp_kind == "rsa"))


def _core(operator: Operator, block: Block, degrees: Degrees) -> AttentionShape:
    """What a rank attends to in a pass: of whole rows everything, a window or not."""
    keys, causal = attended(operator, block, degrees)
    in_blocks = _in_blocks(degrees)  # no window there
    return AttentionShape(
        batch_heads=-(-block.heads // degrees.tp) * degrees.micro_batch,
        seq_q=scaled(-(-degrees.seq_len // degrees.cp), operator.rows),
        seq_kv=np.where(in_blocks, degrees.seq_len, keys),
        head_dim=np.asarray(block.head_dim),
        causal=np.where(in_blocks, operator.causal, causal),
    )


def _pass_s(
    direction: str,
    shape: AttentionShape,
    number: Format,
    at: OnRank,
) -> Array:
    """Seconds of a pass by the kernels' rates."""
    operator, block, degrees, precision, machine = at
    in_blocks = _in_blocks(degrees)
    once = replace(shape, seq_kv=np.where(in_blocks, shape.seq_q, shape.seq_kv))
    times = np.where(in_blocks, degrees.cp, 1)
    slowdown = alignment_slowdown(block.head_dim, machine.device, number)

    def kernel_s(kernel: str) -> Array:
        one_s = attention_s(
            kernel,
            direction,
            once,
            device=machine.device,
            rates=machine.rates,
            number=number,
            slowdown=slowdown,
        )
        return one_s * times

    kernel = attention_kernel(degrees, machine)
    goes_round = _goes_round(operator, block, degrees)
    if kernel.startswith("flash") and goes_round.any():
        timed = partial(
            attention_s,
            kernel,
            direction,
            device=machine.device,
            rates=machine.rates,
            number=number,
        )
        blocks = _blocks_s(timed, shape, operator.causal, degrees)
        added = _added_s(direction, at)
        return np.where(goes_round, blocks + added, kernel_s(kernel))
    found = kernel_s(kernel)
    slow = falls_back(block, degrees, precision, machine)
    return np.where(slow, kernel_s("materialised"), found) if slow.any() else found


def _goes_round(operator: Operator, block: Block, degrees: Degrees) -> Array:
    """Where keys of the whole sequence come block by block."""
    whole = attended(operator, block, degrees)[0] == degrees.seq_len
    return np.asarray((degrees.cp > 1) & (degrees.cp_kind == "ring") & whole)


def _blocks_s(
    timed: Callable[[AttentionShape], Array],
    shape: AttentionShape,
    causal: bool,
    degrees: Degrees,
) -> Array:
    """Seconds of a ring's kernels: the own block of keys, then cp − 1 of others."""
    local = np.asarray(shape.seq_q)
    own = replace(shape, seq_kv=local)
    others = replace(
        shape, seq_kv=local / 2 if causal else local, causal=np.asarray(False)
    )
    return np.asarray(timed(own) + (degrees.cp - 1) * timed(others))


def _added_s(direction: str, at: OnRank) -> Array:
    """Seconds of adding up what a ring's kernels make. Under a causal mask half of the
    other blocks concern half of the queries."""
    operator, block, degrees, precision, machine = at
    cp, local = degrees.cp, tokens(degrees, split=False)
    steps = (1 + 3 * cp) / 4 if operator.causal else cp
    width = steps * extent("query", block, degrees)
    if direction == "backward":
        width = width + cp * extent("key_value", block, degrees)
    moved = ADDED * local * width * precision.activation.bytes
    return traffic_s(moved, device=machine.device, rates=machine.rates, kernels=cp)


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
