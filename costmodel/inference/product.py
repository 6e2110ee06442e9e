"""Seconds of a matrix product that may have few rows: its weight is read once, by all
of the device.

Decoding multiplies a row a sequence. Kernels for that take tiles as low as the tensor
cores' instructions allow, and split the sum over k where the output has fewer tiles
than the device has multiprocessors (split-K of cuBLAS and CUTLASS): the same law as
`matmul_s`, of tile and edges, without waves. The lesser of both counts.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from costmodel.compute import matmul_s, traffic_s
from costmodel.machine import Machine
from costmodel.operator_price import misaligned
from profiles.measurable import SIXTEEN_BITS
from profiles.precision import Format

Array = NDArray[Any]
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
        *shape, device=device, rates=rates, number=number, weight_bytes=weight_bytes
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
