"""Aceso's operator profiles of GPT models on a V100-32GB, from layer_times.csv."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from benchmarks.fit.published import Products, Row, Traffic, rows
from profiles.hardware.precisions import Format
from profiles.units import MS

# Shorter times of Aceso's profiles are the host's, not the device's: module calls that
# launch next to nothing take 35 to 50 us there.
_DEVICE_BOUND_S = 2e-4

# Aceso's GPT profiles (V100-32GB): hidden size and heads of each model, sequence 2048.
_ACESO_GPT = {
    "scale-layer": (512, 8),
    "350M": (1024, 16),
    "1_3B": (2048, 32),
    "2_6B": (2560, 32),
    "6_7B": (4096, 32),
    "13B": (5120, 40),
}
_ACESO_SEQUENCE = 2048
_ACESO_NAME = re.compile(r"gpt_(.+)_mbs(\d+)_tp(\d+)_algo0")


def products(folder: Path) -> Products:
    """V100 products that no collective is timed with.

    Column-parallel forward and row-parallel backward are free of collectives at any
    tp. A backward is two products: for the input and for the weight.
    """
    timed = []
    for hidden, _, tokens, tp, row in profiled(folder):
        wide = 4 * hidden // tp
        match row["item"]:
            case "enc-MLP-GEMM-1":
                timed.append(([(tokens, wide, hidden)], row["fwd_ms"]))
            case "enc-MLP-GEMM-2":
                two = [(tokens, wide, hidden), (wide, hidden, tokens)]
                timed.append((two, row["bwd_ms"]))
            case "enc-attention-dense":
                part = hidden // tp
                two = [(tokens, part, hidden), (part, hidden, tokens)]
                timed.append((two, row["bwd_ms"]))
    return _together(timed, Format.FP16)


def traffic(folder: Path) -> Traffic:
    """V100 kernels bound by memory, with the bytes their inputs and outputs hold.

    GELU reads and writes one 16-bit value (backward reads two); dropout also moves a
    byte of mask. Layer norm is left out: it is bound by its reductions.
    """
    points = []
    for hidden, heads, tokens, tp, row in profiled(folder):
        count = tokens * _ACESO_SEQUENCE * heads / tp
        match row["item"]:
            case "enc-MLP-gelu":
                points.append((4 * 4 * tokens * hidden / tp, row["fwd_ms"]))
                points.append((6 * 4 * tokens * hidden / tp, row["bwd_ms"]))
            case "enc-attention-dropout":
                points.append((5 * count, row["fwd_ms"]))
                points.append((5 * count, row["bwd_ms"]))
    size, milliseconds = np.array(points, dtype=np.float64).T
    long = milliseconds * MS > _DEVICE_BOUND_S
    return Traffic(size_bytes=size[long], seconds=milliseconds[long] * MS)


def scores(folder: Path, direction: str) -> Traffic:
    """V100 softmax and dropout together; `size_bytes` holds the number of scores."""
    column = {"forward": "fwd_ms", "backward": "bwd_ms"}[direction]
    totals: dict[tuple[str, float], float] = {}
    for _, heads, tokens, tp, row in profiled(folder):
        if row["item"] in ("enc-attention-softmax", "enc-attention-dropout"):
            key = (row["model"], tokens * _ACESO_SEQUENCE * heads / tp)
            totals[key] = totals.get(key, 0.0) + float(row[column]) * MS
    return Traffic(
        size_bytes=np.array([count for _, count in totals]),
        seconds=np.array(list(totals.values())),
    )


def profiled(folder: Path) -> Iterator[tuple[int, int, int, int, Row]]:
    """Hidden size, heads, tokens and tp of every GPT operator that was timed."""
    for row in rows(folder, "layer_times.csv"):
        name = _ACESO_NAME.fullmatch(row["model"])
        if name is not None:
            hidden, heads = _ACESO_GPT[name.group(1)]
            tokens = int(name.group(2)) * _ACESO_SEQUENCE
            yield hidden, heads, tokens, int(name.group(3)), row


def _together(
    timed: Sequence[tuple[Sequence[tuple[int, int, int]], str]], number: Format
) -> Products:
    timed = [row for row in timed if float(row[1]) * MS > _DEVICE_BOUND_S]
    width = max(len(calls) for calls, _ in timed)
    shape = np.ones((3, len(timed), width))
    counts = np.zeros((len(timed), width))
    for point, (calls, _) in enumerate(timed):
        for index, call in enumerate(calls):
            shape[:, point, index] = call
            counts[point, index] = 1.0
    return Products(
        m=shape[0],
        n=shape[1],
        k=shape[2],
        batch=np.ones_like(counts),
        counts=counts,
        output_bytes=np.full_like(counts, 2.0),
        seconds=np.array([float(ms) for _, ms in timed]) * MS,
        number=number,
    )
