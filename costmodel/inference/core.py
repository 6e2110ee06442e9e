"""Attention of one new token over its cache: bytes of the cache, and FLOPs.

    heads      2 products of 2 · heads · span · head_dim FLOPs a sequence
    latents    absorbed: each head's query meets the latent itself, 2 · heads · span ·
               (2 · kv_rank + rope) (DeepSeek-V2, 2024, section 2.1.2)

The cache is read once, in as many pieces side by side as fill the device
(Flash-Decoding, Dao et al., 2023).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from costmodel.attention_price import attention_kernel
from costmodel.compute import attention_rate, traffic_s
from costmodel.degrees import Degrees
from costmodel.inference.cache import cached_elements, is_latent, span
from costmodel.machine import Machine
from profiles.graph import Block
from profiles.measurable import SIXTEEN_BITS
from profiles.precision import Format

Array = NDArray[Any]


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
