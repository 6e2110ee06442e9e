"""Seconds of operators on one device: matrix products, attention, memory traffic.

    product    tile and wave quantisation, pipeline fill, roofline  → matmul_s
    attention  kept on chip (flash) or written out (materialised)   → attention_s
    the rest   bytes over bandwidth                                 → traffic_s

Written once for arrays: every argument that is a number may be an array, and they
broadcast; a scalar gives a 0-d result. More work never costs less (but see
`alignment_slowdown`, the one cliff, which is kept apart for that reason).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from costmodel.machine.rates import AttentionRate, Rates
from profiles.errors import InvalidSpec, UnknownName
from profiles.hardware import Device, Format
from profiles.samples import SIXTEEN_BITS

Floats = NDArray[np.float64]

# Rows and columns of the output tiles that cuBLAS and CUTLASS choose among.
_SIDES = (256, 128, 64)
_TILES = ((256, 128), (128, 256), (128, 128), (64, 128), (128, 64), (64, 64))
_BLOCK = 128.0  # query rows of one flash-attention block (Dao 2023, section 3.3)
_BACKWARD_FLASH = 2.5  # five products instead of two (Dao 2023, section 3.1)
_ALIGNMENT = 8  # elements: 16 bytes of a 16-bit format (cuBLAS documentation)
# Bytes that single kernels move of a 32-bit score [counted]: scale, mask and softmax 8
# each; backward 8, 8 and 12 (gradient, result and what is written).
_WIDE_SCORE = (24.0, 28.0)
KERNELS = ("flash-1", "flash-2", "flash-3", "fused-softmax", "materialised")
DIRECTIONS = ("forward", "backward")


@dataclass(frozen=True, slots=True, kw_only=True)
class ElementBytes:
    """Bytes of an element as it lies in memory: of a product's `output`, 2 unless it is
    multiplied in wider ones, and of its `weight`, the k x n operand, where that is
    stored in fewer than it is multiplied in."""

    output: ArrayLike | None = None
    weight: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionShape:
    """An attention core of *batch_heads* (micro-batch x heads) heads; arrays or
    numbers."""

    batch_heads: ArrayLike
    seq_q: ArrayLike
    seq_kv: ArrayLike
    head_dim: ArrayLike
    causal: ArrayLike


_AS_MULTIPLIED = ElementBytes()


def matmul_flops(
    m: ArrayLike, n: ArrayLike, k: ArrayLike, batch: ArrayLike = 1.0
) -> Floats:
    """FLOPs of *batch* products (m x k)(k x n): a multiply and an add each.

    >>> float(matmul_flops(2, 3, 4))
    48.0
    """
    return 2.0 * _floats(m) * _floats(n) * _floats(k) * _floats(batch)


def attention_flops(shape: AttentionShape) -> Floats:
    """FLOPs of one attention forward: scores and values, half of them if causal."""
    full = 2.0 * matmul_flops(
        shape.seq_q, shape.seq_kv, shape.head_dim, shape.batch_heads
    )
    return _floats(full * np.where(shape.causal, 0.5, 1.0))


def matmul_s(
    m: ArrayLike,
    n: ArrayLike,
    k: ArrayLike,
    batch: ArrayLike = 1.0,
    *,
    device: Device,
    rates: Rates,
    number: Format,
    stored: ElementBytes = _AS_MULTIPLIED,
) -> Floats:
    """Seconds of *batch* equal products (m x k)(k x n) in one launch.

    The output is cut into tiles; multiprocessors take them in waves. A tile of
    Tm x Tn costs (Tm Tn + edge (Tm + Tn)) (k + fill_k) multiply-adds of the sustained
    rate; the cheapest of six tile shapes counts. Beside it the operands are read and
    the output written once at the fitted share of bandwidth; the two overlap softly
    (fourth power mean), and each launch has a fixed overhead. Operands are multiplied
    in *number*; *stored* says how wide they lie in memory.

    Raises Unsupported if the device does not multiply in *number*.
    """
    m, n, k, batch = map(_floats, (m, n, k, batch))
    fit = rates.matmul
    written = _floats(
        max(number.bytes, 2.0) if stored.output is None else stored.output
    )
    moved = number.bytes * (m + n) * k + written * m * n
    if stored.weight is not None:
        moved = moved - (number.bytes - stored.weight) * n * k
    traffic = batch * moved / (fit.bandwidth * device.memory_bytes_per_s)
    flops_per_s = fit.sustained_of(number) * device.peak_flops_per_s(number)
    units = _tiled(m, n, batch, device.multiprocessors, fit.wave, fit.edge)
    compute = 2.0 * units * (k + _fill_k(fit.fill_k, device, number)) / flops_per_s
    seconds: Floats = np.sqrt(np.hypot(compute**2, traffic**2)) + fit.overhead_s
    return seconds


def grouped_matmul_s(
    groups: ArrayLike,
    m: ArrayLike,
    n: ArrayLike,
    k: ArrayLike,
    *,
    device: Device,
    rates: Rates,
    number: Format,
    stored: ElementBytes = _AS_MULTIPLIED,
) -> Floats:
    """Seconds of *groups* products of *m* rows each: the experts of one rank.

    Grouped launches walk over their groups: each further one adds `group_s`.
    """
    together = matmul_s(
        m,
        n,
        k,
        groups,
        device=device,
        rates=rates,
        number=number,
        stored=stored,
    )
    return together + rates.matmul.group_s * np.maximum(_floats(groups) - 1.0, 0.0)


def attention_s(
    kernel: str,
    direction: str,
    shape: AttentionShape,
    *,
    device: Device,
    rates: Rates,
    number: Format,
    slowdown: ArrayLike = 1.0,
) -> Floats:
    """Seconds of an attention core of *shape*.

    Flash kernels cost FLOPs (a causal mask halves them, backward is 2.5 forwards);
    the others cost two products forward, four backward, each over the whole square,
    and `*_bytes_per_score` of traffic for mask, softmax and dropout. *slowdown* is
    that of their products (see `alignment_slowdown`); flash kernels pad heads instead.

    Raises UnknownName for another kernel or direction.
    """
    rate = attention_rate(kernel, rates)
    if direction not in DIRECTIONS:
        raise UnknownName("attention direction", direction, DIRECTIONS)
    sizes = (shape.batch_heads, shape.seq_q, shape.seq_kv, shape.head_dim)
    whole = tuple(map(_floats, sizes))
    forward = direction == "forward"
    if rate.writes_scores:
        calls = _floats(slowdown) * (1.0 if forward else 2.0)
        return _materialised_s(whole, calls, forward, rate, device, rates, number)
    padded = (*whole[:3], _padded_head(kernel, whole[3]))
    return _flash_s(padded, forward, shape.causal, rate, device, number)


def traffic_s(
    size_bytes: ArrayLike, *, device: Device, rates: Rates, kernels: ArrayLike = 1.0
) -> Floats:
    """Seconds of *kernels* launches that move *size_bytes* together, memory-bound."""
    fit = rates.traffic
    bandwidth = fit.fraction * device.memory_bytes_per_s
    return _floats(size_bytes) / bandwidth + _floats(kernels) * fit.overhead_s


def alignment_slowdown(
    head_dim: ArrayLike, device: Device, number: Format = Format.BF16
) -> Floats:
    """How much longer a product takes whose inner rows are not whole 16-byte words.

    Its operands cannot be loaded for tensor cores, so it runs at the plain fp32 rate:
    the ratio of the two peaks (16 on an A100, 8 on a V100). 1 where *head_dim* is a
    multiple of 8.
    """
    plain = device.peak.get(Format.FP32.value)
    ratio = device.peak_flops_per_s(number) / plain.si if plain else 1.0
    aligned = _floats(head_dim) % _ALIGNMENT == 0
    return np.where(aligned, 1.0, max(ratio, 1.0))


def attention_rate(kernel: str, rates: Rates) -> AttentionRate:
    """The rate of *kernel*, or of the nearest older flash kernel the device has."""
    if kernel not in KERNELS:
        raise UnknownName("attention kernel", kernel, KERNELS)
    for name in (kernel, "flash-2", "flash-1"):
        if name in rates.attention:
            return rates.attention[name]
    raise InvalidSpec(f"the rates of {rates.device} hold no attention kernel")


def _tiled(
    m: Floats, n: Floats, batch: Floats, processors: int, wave: float, edge: float
) -> Floats:
    """Multiply-adds per step of k, in units of the whole device, edges and waves in.

    Normalised so that large outputs in 256 x 128 tiles cost m n.
    """
    whole = 1.0 + edge * (1.0 / 256 + 1.0 / 128)
    rows = {side: np.ceil(m / side) for side in _SIDES}
    columns = {side: np.ceil(n / side) for side in _SIDES}
    shared = batch / processors
    best = None
    for tall, wide in _TILES:
        tiles = rows[tall] * columns[wide] * shared
        waves = (1.0 - wave) * tiles + wave * np.ceil(tiles)
        area = tall * wide + edge * (tall + wide)
        cost = waves * (area * processors / whole)
        best = cost if best is None else np.minimum(best, cost)
    return np.asarray(best)


def _fill_k(fill_k: float, device: Device, number: Format) -> float:
    """Filling takes as long in any format, so a faster one loses more steps to it."""
    sixteen = device.peak.get(Format.BF16.value) or device.peak.get(Format.FP16.value)
    if sixteen is None:
        return fill_k
    return fill_k * device.peak_flops_per_s(number) / sixteen.si


def _padded_head(kernel: str, head_dim: Floats) -> Floats:
    """The head size that a flash kernel computes with: it pads, the first one (in
    Triton) to a power of two, later ones to a multiple of 32 (flash-attention's
    README: head dimensions are rounded up to those that kernels are compiled for)."""
    if kernel == "flash-1":
        return np.asarray(2.0 ** np.ceil(np.log2(np.maximum(head_dim, 16.0))))
    return np.asarray(np.ceil(head_dim / 32.0) * 32.0)


def _flash_s(
    shape: tuple[Floats, ...],
    forward: bool,
    causal: ArrayLike,
    rate: AttentionRate,
    device: Device,
    number: Format,
) -> Floats:
    batch_heads, seq_q, seq_kv, head_dim = shape
    share = np.where(causal, 0.5, 1.0)
    rows = np.ceil(seq_q / _BLOCK) * batch_heads
    # List scheduling: the mean load, and the last block to finish (a full row).
    loads = rows * share / device.multiprocessors + (
        rate.forward_tail if forward else rate.backward_tail
    )
    flops = 4.0 * _BLOCK * seq_kv * (head_dim + rate.half_head)
    efficiency = rate.forward if forward else rate.backward / _BACKWARD_FLASH
    flops_per_s = efficiency * device.peak_flops_per_s(number)
    norm = 128.0 / (128.0 + rate.half_head)
    return loads * device.multiprocessors * flops * norm / flops_per_s + rate.overhead_s


def _materialised_s(
    shape: tuple[Floats, ...],
    calls: Floats,
    forward: bool,
    rate: AttentionRate,
    device: Device,
    rates: Rates,
    number: Format,
) -> Floats:
    batch_heads, seq_q, seq_kv, head_dim = shape
    # Scores (or their gradient), then values: k = head size, then n = head size.
    outer = matmul_s(
        seq_q, seq_kv, head_dim, batch_heads, device=device, rates=rates, number=number
    )
    inner = matmul_s(
        seq_q, head_dim, seq_kv, batch_heads, device=device, rates=rates, number=number
    )
    per_score = (
        rate.forward_bytes_per_score if forward else rate.backward_bytes_per_score
    )
    if number.bytes > SIXTEEN_BITS:
        per_score = _WIDE_SCORE[0 if forward else 1]
    elif number.bytes == SIXTEEN_BITS:
        per_score += rate.forward_cast_bytes if forward else rate.backward_cast_bytes
    scores = batch_heads * seq_q * seq_kv
    return calls * (outer + inner) + traffic_s(
        scores * per_score, device=device, rates=rates, kernels=3.0
    )


def _floats(value: ArrayLike) -> Floats:
    return np.asarray(value, dtype=np.float64)
