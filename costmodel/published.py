"""Published measurements, read from a folder of tables into arrays.

The tables are not part of the project. Each reader returns seconds beside the
shapes they belong to, in the form that `calibration` fits and golden tests check.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from profiles.errors import InvalidFile
from profiles.precision import Format
from profiles.units import GB, MS, TFLOPS

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


def aceso_products(folder: Path) -> Products:
    """V100 products that no collective is timed with.

    Column-parallel forward and row-parallel backward are free of collectives at any
    tp. A backward is two products: for the input and for the weight.
    """
    timed = []
    for hidden, _, tokens, tp, row in _aceso(folder):
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


def aceso_traffic(folder: Path) -> Traffic:
    """V100 kernels bound by memory, with the bytes their inputs and outputs hold.

    GELU reads and writes one 16-bit value (backward reads two); dropout also moves a
    byte of mask. Layer norm is left out: it is bound by its reductions.
    """
    points = []
    for hidden, heads, tokens, tp, row in _aceso(folder):
        scores = tokens * _ACESO_SEQUENCE * heads / tp
        match row["item"]:
            case "enc-MLP-gelu":
                points.append((4 * 4 * tokens * hidden / tp, row["fwd_ms"]))
                points.append((6 * 4 * tokens * hidden / tp, row["bwd_ms"]))
            case "enc-attention-dropout":
                points.append((5 * scores, row["fwd_ms"]))
                points.append((5 * scores, row["bwd_ms"]))
    size, milliseconds = np.array(points, dtype=np.float64).T
    long = milliseconds * MS > _DEVICE_BOUND_S
    return Traffic(size_bytes=size[long], seconds=milliseconds[long] * MS)


def aceso_scores(folder: Path, direction: str) -> Traffic:
    """V100 softmax and dropout together; `size_bytes` holds the number of scores."""
    column = {"forward": "fwd_ms", "backward": "bwd_ms"}[direction]
    totals: dict[tuple[str, float], float] = {}
    for _, heads, tokens, tp, row in _aceso(folder):
        if row["item"] in ("enc-attention-softmax", "enc-attention-dropout"):
            key = (row["model"], tokens * _ACESO_SEQUENCE * heads / tp)
            totals[key] = totals.get(key, 0.0) + float(row[column]) * MS
    return Traffic(
        size_bytes=np.array([scores for _, scores in totals]),
        seconds=np.array(list(totals.values())),
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


def _aceso(folder: Path) -> Iterator[tuple[int, int, int, int, Row]]:
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


def _output_bytes(row: Row) -> float:
    single = 4.0 if "out_dtype=fp32" in row["extra"] else 2.0
    return single * (2.0 if "accumulate=True" in row["extra"] else 1.0)


def _extra(row: Row, name: str) -> str:
    found = re.search(rf"\b{name}=(\w+)", row["extra"])
    if found is None:
        raise InvalidFile(f"hw_gemm.csv: {name} is missing in {row['extra']!r}")
    return found.group(1)


def _column(found: Sequence[Row], name: str) -> Floats:
    return np.array([float(row[name]) for row in found], dtype=np.float64)
