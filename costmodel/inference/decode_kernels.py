"""Attention of one new token over its cache: bytes of the cache, and FLOPs.

    heads      2 products of 2 · heads · span · head_dim FLOPs a sequence
    latents    absorbed: each head's query meets the latent itself, 2 · heads · span ·
               (2 · kv_rank + rope) (DeepSeek-V2, 2024, section 2.1.2)

The cache is read once, in as many pieces side by side as fill the device
(Flash-Decoding, Dao et al., 2023).

Seconds of a tp group's collectives in inference: NCCL's, or in one shot.

Sums of a few tokens are small, and NCCL's launches and hops are most of what they take.
Inside a domain of peer-to-peer links serving engines sum them in one kernel: a barrier,
every rank reads the tensor of every other one, a barrier (the one-shot all-reduce of
TensorRT-LLM, of vLLM's custom_all_reduce and of PyTorch's intra-node communication).

    one shot = a kernel + 2 hops + (k - 1) N / bandwidth      the lesser of both counts

Seconds of a matrix product that may have few rows: its weight is read once, by all
of the device.

Decoding multiplies a row a sequence. Kernels for that take tiles as low as the tensor
cores' instructions allow, and split the sum over k where the output has fewer tiles
than the device has multiprocessors (split-K of cuBLAS and CUTLASS): the same law as
`matmul_s`, of tile and edges, without waves. The lesser of both counts.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from costmodel.inference.kv_cache import cached_elements, is_latent, span
from costmodel.machine import (
    ElementBytes,
    Machine,
    Sourced,
    attention_rate,
    matmul_s,
    near_members,
    traffic_s,
)
from costmodel.operators import Degrees, attention_kernel, misaligned
from profiles.arrays import Array
from profiles.hardware import Format
from profiles.models import Block
from profiles.samples import SIXTEEN_BITS

PEER_TO_PEER: Final = ("nvlink", "nvswitch", "xgmi")  # whose devices read each other


def exchanged(kind: str, size_bytes: Any, ranks: Array, machine: Machine) -> Sourced:
    """Seconds of a collective of *kind* over *ranks* that lie side by side."""
    island, links = machine.island, machine.links
    size = np.asarray(size_bytes, dtype=float)
    near = near_members(np.asarray(1), ranks, island)
    found = machine.collective(kind, size, ranks=ranks, near=near)
    inside = np.all(near == ranks) and island.levels[0].kind.lower() in PEER_TO_PEER
    if kind != "all_reduce" or not inside:
        return found
    bandwidth = links.inner_bytes_per_s * links.inner.fraction
    kernel_s = traffic_s(2 * size, device=machine.device, rates=machine.rates)
    shot_s = kernel_s + 2 * links.inner.hop_s + (ranks - 1) * size / bandwidth
    return Sourced(seconds=np.where(ranks > 1, np.minimum(found.seconds, shot_s), 0.0))


_STEP: Final = 8  # rows: mma.m16n8k16 with operands swapped (PTX ISA, warp-level mma)
_MOST_ROWS: Final = 128  # of one tile
_COLUMNS: Final = 128
_LARGE: Final = 1 / 256 + 1 / 128  # edges of the tile that rates are normalised by


def product_s(
    m: Any,
    n: Any,
    k: Any,
    batch: Any = 1.0,
    *,
    machine: Machine,
    number: Format,
    weight_bytes: float,
) -> Array:
    """Seconds of *batch* products (m x k)(k x n) in one launch, multiplied in *number*,
    with weights of *weight_bytes* an element. Operands of 8 bits or fewer are made of
    16-bit ones before."""
    shape = tuple(np.asarray(size, dtype=float) for size in (m, n, k, batch))
    device, rates = machine.device, machine.rates
    found = matmul_s(
        *shape,
        device=device,
        rates=rates,
        number=number,
        stored=ElementBytes(weight=weight_bytes),
    )
    few = shape[0] <= _MOST_ROWS
    if np.any(few):
        low = _few_rows_s(shape, machine, number, weight_bytes)
        found = np.where(few, np.minimum(found, low), found)
    found = found * misaligned(n, k)
    if number.bytes < SIXTEEN_BITS:
        made = batch * m * k * (SIXTEEN_BITS + number.bytes)
        found = found + traffic_s(made, device=device, rates=rates)
    return np.asarray(found)


def _few_rows_s(
    shape: tuple[Array, ...], machine: Machine, number: Format, weight_bytes: float
) -> Array:
    m, n, k, batch = shape
    device, fit = machine.device, machine.rates.matmul
    rows = _STEP * np.ceil(m / _STEP)
    tiles = batch * np.ceil(n / _COLUMNS)
    parts = np.maximum(device.multiprocessors / tiles, 1.0)
    cost = rows * _COLUMNS + fit.edge * (rows + _COLUMNS)
    units = tiles * cost / (1.0 + fit.edge * _LARGE)
    flops_per_s = fit.sustained_of(number) * device.peak_flops_per_s(number)
    compute = 2.0 * units * (k + parts * fit.fill_k) / flops_per_s
    written = max(number.bytes, SIXTEEN_BITS)  # partial sums stay in the cache
    moved = batch * ((number.bytes * m + weight_bytes * n) * k + written * m * n)
    traffic = moved / (fit.bandwidth * device.memory_bytes_per_s)
    return np.asarray(np.sqrt(np.hypot(compute**2, traffic**2)) + fit.overhead_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class Core:
    """Seconds of a layer's attention on one rank, its FLOPs and bytes of the cache."""

    seconds: Array
    flops: Array
    cache_bytes: Array


def core(
    block: Block,
    degrees: Degrees,
    context: Any,
    *,
    number: Format,
    cache: Format,
    machine: Machine,
) -> Core:
    """One token of each of `micro_batch` sequences over *context* tokens (an array),
    multiplied in *number* and cached in *cache*."""
    device, batch = machine.device, degrees.micro_batch
    seen = span(block, context)
    heads = -(-block.heads // degrees.tp)
    if is_latent(block):
        width = 2 * block.extents["kv_rank"] + block.extents["rope"]
    else:
        width = 2 * block.head_dim
    pairs = np.asarray(batch * heads * seen, dtype=float)
    flops = 2.0 * pairs * width
    read = np.asarray(batch * seen * cache.bytes, dtype=float)
    read = read * cached_elements(block, int(degrees.tp))
    rate = attention_rate(attention_kernel(degrees, machine), machine.rates)
    kept, kernels, moved = rate.forward, 1.0, read
    if rate.writes_scores:
        kept, kernels = machine.rates.matmul.sustained_of(number), 3.0
        each = rate.forward_bytes_per_score * max(number.bytes / SIXTEEN_BITS, 1.0)
        moved = read + pairs * each
    computed_s = flops / (kept * device.peak_flops_per_s(number))
    moved_s = traffic_s(moved, device=device, rates=machine.rates, kernels=0.0)
    launched_s = traffic_s(0.0, device=device, rates=machine.rates, kernels=kernels)
    both_s = np.sqrt(np.hypot(computed_s**2, moved_s**2))
    return Core(seconds=both_s + launched_s, flops=flops, cache_bytes=read)
