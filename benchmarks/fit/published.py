"""Published measurements, read from a folder of tables into arrays.

The tables are not part of the project. Each reader returns seconds beside the
shapes they belong to, in the form that `calibration` fits and golden tests check.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from profiles.errors import InvalidFile
from profiles.hardware.precisions import Format
from profiles.units import GB, TFLOPS

Floats = NDArray[np.float64]
Row = Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Products:
    """Timed matrix products; arrays are (points, products timed together)."""

    m: Floats
    n: Floats
    k: Floats
    batch: Floats
    counts: Floats  # how often each product ran; 0 fills a row up
    output_bytes: Floats  # moved for one output element, its accumulation included
    seconds: Floats  # (points,)
    number: Format

    def __len__(self) -> int:
        return len(self.seconds)


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionTimes:
    """Timed causal attention cores of one direction."""

    batch_heads: Floats
    sequence: Floats
    head_dim: Floats
    seconds: Floats


@dataclass(frozen=True, slots=True, kw_only=True)
class Traffic:
    """Timed kernels bound by memory: bytes in and out, kernels launched."""

    size_bytes: Floats
    seconds: Floats


@dataclass(frozen=True, slots=True, kw_only=True)
class Transfers:
    """Timed collectives (or sends) of one kind."""

    ranks: Floats
    nodes: Floats
    size_bytes: Floats
    seconds: Floats

    def __len__(self) -> int:
        return len(self.seconds)


def rows(folder: Path, name: str) -> list[Row]:
    """All rows of the table *name* in *folder*; raises InvalidFile if unreadable."""
    try:
        with (folder / name).open(newline="", encoding="utf-8") as file:
            return list(csv.DictReader(file))
    except OSError as error:
        raise InvalidFile(
            f"{folder / name} cannot be read ({error.strerror}); MESHWRIGHT_DATA must "
            "name the folder of published measurements"
        ) from error


def products(folder: Path, device: str, op: str = "matmul") -> Products:
    """The products of *device* in hw_gemm.csv: `matmul`, `group_matmul` or `gemm`."""
    found = [row for row in rows(folder, "hw_gemm.csv") if row["op"] == op]
    found = [row for row in found if row["device"] == device]
    shape = {name: _column(found, name) for name in ("batch", "m", "n", "k")}
    if op == "group_matmul":
        shape = _of_stage(found, shape)
    flops = 2.0 * shape["batch"] * shape["m"] * shape["n"] * shape["k"]
    eight_bit = bool(found) and found[0]["dtype"].startswith("fp8")
    return Products(
        m=shape["m"][:, None],
        n=shape["n"][:, None],
        k=shape["k"][:, None],
        batch=shape["batch"][:, None],
        counts=np.ones((len(found), 1)),
        output_bytes=np.array([_output_bytes(row) for row in found])[:, None],
        seconds=flops / (_column(found, "tflops") * TFLOPS),
        number=Format.FP8 if eight_bit else Format.BF16,
    )


def _of_stage(found: Sequence[Row], shape: dict[str, Floats]) -> dict[str, Floats]:
    """*shape* as it is multiplied: grouped products are printed with the m, n and k of
    the forward, whatever their stage."""
    turned = {"fwd": "mnk", "bwd_grad_act": "mkn", "bwd_grad_w": "knm"}
    order = [turned[_extra(row, "stage")] for row in found]
    columns = {
        name: np.array([shape[one[at]][row] for row, one in enumerate(order)])
        for at, name in enumerate("mnk")
    }
    return {"batch": shape["batch"], **columns}


def attention(folder: Path, device: str, direction: str) -> AttentionTimes:
    """The causal attention cores of *device* in hw_gemm.csv.

    Their rates count the full square. Where query and value heads differ in size,
    kernels pad to the larger, which is what `head_dim` holds.
    """
    op = {"forward": "sdp_fwd", "backward": "sdp_bwd"}[direction]
    found = [
        row
        for row in rows(folder, "hw_gemm.csv")
        if row["device"] == device and row["op"] == op
    ]
    batch, sequence, heads, query, value = (
        np.array([float(_extra(row, name)) for row in found])
        for name in ("batch", "seq_len", "head_num", "qk_head_dim", "v_head_dim")
    )
    flops = 2.0 * batch * heads * sequence**2 * (query + value)
    flops *= 1.0 if direction == "forward" else 2.5
    return AttentionTimes(
        batch_heads=batch * heads,
        sequence=sequence,
        head_dim=np.maximum(query, value),
        seconds=flops / (_column(found, "tflops") * TFLOPS),
    )


def collectives(
    folder: Path, device: str, *, source: str, kind: str = "all_reduce", note: str = ""
) -> Transfers:
    """Rows of hw_collectives.csv whose source and conditions hold *source*, *note*.

    The bus bandwidth that is printed counts 2(k - 1)/k bytes for each byte of an
    all-reduce (nccl-tests, doc/PERFORMANCE.md), and one for each byte sent.
    """
    found = [
        row
        for row in rows(folder, "hw_collectives.csv")
        if row["device"] == device
        and row["collective"] == kind
        and source in row["source"]
        and note in row["conditions"]
        and row["size_bytes"].isdigit()
        and row["busbw_GBps"]
    ]
    ranks, size = _column(found, "gpus"), _column(found, "size_bytes")
    sent = 2.0 * (1.0 - 1.0 / ranks) if kind == "all_reduce" else np.ones_like(ranks)
    return Transfers(
        ranks=ranks,
        nodes=_column(found, "nodes"),
        size_bytes=size,
        seconds=sent * size / (_column(found, "busbw_GBps") * GB),
    )


def single_figure(folder: Path, device: str, metric: str) -> float:
    """One number of hw.csv, in the unit printed there."""
    for row in rows(folder, "hw.csv"):
        if row["device"] == device and row["metric"] == metric:
            return float(row["value"])
    raise InvalidFile(f"hw.csv has no {metric!r} of {device}")


def thinned(table: Transfers, per_group: int = 40) -> Transfers:
    """About *per_group* sizes a decade-even spacing for each number of ranks."""
    kept: list[int] = []
    for ranks in np.unique(table.ranks):
        index = np.flatnonzero(table.ranks == ranks)
        steps = np.round(np.geomspace(1, len(index), min(per_group, len(index))))
        kept.extend(index[np.unique(steps.astype(int)) - 1])
    return Transfers(
        ranks=table.ranks[kept],
        nodes=table.nodes[kept],
        size_bytes=table.size_bytes[kept],
        seconds=table.seconds[kept],
    )


def _output_bytes(row: Row) -> float:
    """Of an element: written, or read and written where it is added to a gradient,
    whose format grouped products print apart."""
    said = row["extra"]
    added = "accumulate=True" in said
    kind = "main_grad_dtype" if added and "main_grad_dtype" in said else "out_dtype"
    single = 4.0 if f"{kind}=fp32" in said else 2.0
    return single * (2.0 if added else 1.0)


def _extra(row: Row, name: str) -> str:
    found = re.search(rf"\b{name}=(\w+)", row["extra"])
    if found is None:
        raise InvalidFile(f"hw_gemm.csv: {name} is missing in {row['extra']!r}")
    return found.group(1)


def _column(found: Sequence[Row], name: str) -> Floats:
    return np.array([float(row[name]) for row in found], dtype=np.float64)
