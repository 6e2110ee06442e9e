"""The scan of a recurrence under a layout: products of each chunk, states between.

A sequence is cut into chunks of C tokens. With keys of K and values of V elements a
head, products (rows, columns, contracted) of each chunk and head are

mamba-2,     scores (C, C, K) of each group of keys, times values (C, V, C/2: blocks
linear       above the diagonal are left out), the chunk's state (V, K, C) and what the
             state before it adds (C, V, K); the state goes on by elements (Dao and Gu,
             arXiv 2405.21060, section 6 and listing 1; mamba_ssm, ssd_combined.py)
gated-delta  keys with keys (C, C, K), the inverse of that triangle (C, C, C/3), times
             keys (C, K, C) and values (C, V, C); queries with keys (C, C, K), times
             values (C, V, C), and with the state (C, V, K). One chunk after the other:
             what the state predicts (C, V, K) and what is learned (K, V, C), as one
             long product a head, since no other chunk runs beside it (Yang et al.,
             arXiv 2412.06464, section 3.3; flash-linear-attention, chunk.py)
mamba-1      no products: 9 · K FLOPs a channel and token outside tensor cores, beside
             what is read and written (Gu and Dao, arXiv 2312.00752, section 3.3.2)

Backward makes two gradients of each product, and the states again.

Over tp lie heads, and the groups of keys with them (each rank has one at least; Dao and
Gu, section 8.1). Over cp, by `ulysses`, all-to-alls give each rank all tokens of some
heads (as Megatron-Core does); else each rank's state goes on to the next rank (section
8.2), or all states are gathered, and each rank's chunks run as they are.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any, Final, NamedTuple

import numpy as np

from costmodel.machine import (
    Machine,
    Sourced,
    changes_rail,
    matmul_flops,
    matmul_s,
    near_members,
    shares,
    traffic_s,
)
from costmodel.operators.attention import Message
from costmodel.operators.degrees import Degrees, tokens
from costmodel.operators.sharding import extent, local_shape
from costmodel.operators.work import OnRank, Work
from profiles.arrays import Array
from profiles.hardware import Format, Precision
from profiles.models import HEADS, KEY, VALUE, Block
from profiles.samples import number_of

GRADIENTS: Final = 2.0  # of each product in backward
# Bytes of a state's element between chunks, beside the products that make and read it:
# written and read in fp32, and written as it goes on [counted] in mamba_ssm; of a gated
# delta net written once, in 16 bits.
STATE_BYTES: Final = {"mamba-2": 10.0, "linear": 10.0, "gated-delta": 2.0}
# Of a token and head: step size, decay and its sum, in fp32 [counted].
STEP_BYTES: Final = 16.0
KERNELS: Final = 2  # beside one a product: sums of decays, states that go on
FLOPS_OF_A_STATE: Final = 9.0  # of mamba-1: decay, input and output [counted]
# Elements of a channel and token that mamba-1's scan reads and writes: input, step
# size, gate, output twice; backward these again, and three gradients.
CHANNEL: Final = {"forward": 5.0, "backward": 8.0}
AGAIN: Final = 3.0  # FLOPs of mamba-1's backward over forward's: states made again


class _Sizes(NamedTuple):
    """Of a scan on one rank; `chunks` of a sequence, `runs` of all heads' sequences."""

    chunk: Array
    chunks: Array
    runs: Array
    groups: Array
    key: Array
    value: Array


class _Product(NamedTuple):
    """Equal products, so many at once; `state`: backward makes them once more."""

    rows: Any
    columns: Any
    contracted: Any
    count: Any
    state: bool = False


def scan_work(at: OnRank) -> tuple[Work, Work]:
    """Forward and backward of the scan."""
    operator, block, degrees, precision, machine = at
    number = number_of(operator, precision)
    works = []
    for direction in ("forward", "backward"):
        taken = machine.operator(
            partial(local_shape, operator, block, degrees),
            direction,
            number,
            partial(_seconds, direction, at, number),
            where=np.asarray(degrees.cp) == 1,
        )
        sent = _exchanged(direction, block, degrees, precision, machine)
        work = Work.of(taken, context_comm=sent, flops=_flops(direction, at))
        works.append(work)
    return works[0], works[1]


def state_messages(
    direction: str, block: Block, degrees: Degrees, precision: Precision
) -> tuple[Message, ...]:
    """What a rank of cp > 1 sends in a pass, without a convolution's few tokens."""
    cp, size = degrees.cp, precision.activation.bytes
    if degrees.cp_kind == "ulysses":
        local = tokens(degrees, split=False)
        made = extent(VALUE, block, degrees)
        read = 2 * (made + extent(KEY, block, degrees)) + extent(HEADS, block, degrees)
        return (
            _message("all_to_all", local * read * size),
            _message("all_to_all", local * made * size),
        )
    state = extent(VALUE, block, degrees) * block.extents["mixer_state"]
    state = degrees.micro_batch * state * Format.FP32.bytes
    if degrees.cp_kind == "all-gather":
        return (_message("all_gather", cp * state),)
    return (_message("send", state, cp - 1),)


def _message(kind: str, size_bytes: Any, times: Any = 1) -> Message:
    return Message(
        kind=kind, size_bytes=np.asarray(size_bytes), times=np.asarray(times)
    )


def _sizes(block: Block, degrees: Degrees) -> _Sizes:
    local = -(-degrees.seq_len // degrees.cp)
    chunk = np.minimum(block.extents["mixer_chunk"], local)
    heads = extent(HEADS, block, degrees)
    per_rank = np.maximum(-(-block.extents["mixer_groups"] // degrees.tp), 1)
    return _Sizes(
        chunk=chunk,
        chunks=-(-local // chunk),
        runs=degrees.micro_batch * heads,
        groups=degrees.micro_batch * per_rank,
        key=np.asarray(block.extents["mixer_state"]),
        value=np.asarray(block.extents["mixer_head_dim"]),
    )


def _products(kind: str, sizes: _Sizes) -> Iterator[_Product]:
    chunk, chunks, runs, groups, key, value = sizes
    every = runs * chunks
    if kind == "gated-delta":
        yield _Product(chunk, chunk, key, every, state=True)
        yield _Product(chunk, chunk, chunk / 3, every)
        yield _Product(chunk, key, chunk, every, state=True)
        yield _Product(chunk, value, chunk, every, state=True)
        yield _Product(chunk, value, key * chunks, runs, state=True)
        yield _Product(key, value, chunk * chunks, runs, state=True)
        yield _Product(chunk, chunk, key, every)
        yield _Product(chunk, value, chunk, every)
    elif kind in ("mamba-2", "linear"):
        yield _Product(chunk, chunk, key, groups * chunks, state=True)
        yield _Product(chunk, value, chunk / 2, every)
        yield _Product(value, key, chunk, every, state=True)
    else:
        return
    yield _Product(chunk, value, key, every)


def _flops(direction: str, at: OnRank) -> Array:
    sizes, kind = _sizes(at.block, at.degrees), at.operator.function
    if kind == "mamba-1":
        again = 1.0 if direction == "forward" else AGAIN
        return np.asarray(again * _channels(sizes) * FLOPS_OF_A_STATE * sizes.key)
    total: Array = np.zeros(())
    for one in _products(kind, sizes):
        times = 1.0 if direction == "forward" else GRADIENTS + one.state
        total = total + times * matmul_flops(*one[:4])
    return total


def _channels(sizes: _Sizes) -> Array:
    """Channels of all tokens."""
    return np.asarray(sizes.runs * sizes.value * sizes.chunks * sizes.chunk)


def _seconds(direction: str, at: OnRank, number: Format) -> Array:
    """Seconds of a pass by the rates of batched products and of memory."""
    operator, block, degrees, _, machine = at
    sizes, kind = _sizes(block, degrees), operator.function
    device, rates = machine.device, machine.rates
    if kind == "mamba-1":
        moved = CHANNEL[direction] * _channels(sizes) * number.bytes
        flops_s = _flops(direction, at) / _plain_flops_per_s(machine)
        return np.maximum(traffic_s(moved, device=device, rates=rates), flops_s)
    again = 1.0 if direction == "forward" else GRADIENTS
    total: Array = np.zeros(())
    for one in _products(kind, sizes):
        times = again + (one.state if direction == "backward" else 0)
        once = matmul_s(*one[:4], device=device, rates=rates, number=number)
        total = total + times * once
    states = sizes.runs * sizes.chunks * sizes.key * sizes.value * STATE_BYTES[kind]
    steps = sizes.runs * sizes.chunks * sizes.chunk * STEP_BYTES
    beside = traffic_s(states + steps, device=device, rates=rates, kernels=KERNELS)
    return np.asarray(total + again * beside)


def _plain_flops_per_s(machine: Machine) -> float:
    """Outside tensor cores; of a device that does not say, in 16 bits."""
    plain = machine.device.peak.get(Format.FP32.value)
    return plain.si if plain else machine.device.peak_flops_per_s(Format.BF16)


def _exchanged(
    direction: str,
    block: Block,
    degrees: Degrees,
    precision: Precision,
    machine: Machine,
) -> Sourced:
    """Exposed seconds: the next rank's chunks wait for the state."""
    cp, island = degrees.cp, machine.island
    near = near_members(degrees.tp, cp, island)
    total = Sourced(seconds=np.zeros(()))
    for one in state_messages(direction, block, degrees, precision):
        if one.kind == "send":
            taken = machine.shift(
                one.size_bytes,
                np.ones(()),
                ranks=cp,
                near=near,
                shares=shares(island.domain // near, island),
                changes_rail=changes_rail(degrees.tp, island),
            )
        else:
            taken = machine.collective(one.kind, one.size_bytes, ranks=cp, near=near)
        total = total + taken * one.times
    return total.where(cp > 1)
