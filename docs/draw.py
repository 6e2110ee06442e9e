"""The pictures of docs/concepts.md, drawn from estimates of our own.

    python -m docs.regenerate    draws them again, with all other output

Colours and text are legible on light and on dark pages.
"""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Iterator, Mapping
from html import escape
from itertools import groupby, pairwise
from typing import Any, Final

import numpy as np

import costmodel
from costmodel.layout import Layout
from costmodel.pages import estimate_series
from costmodel.simulation import Estimate
from profiles.units import GiB, format_seconds

WIDTH: Final = 720
_LEFT: Final = 70
_ROW: Final = 26
_COLOURS: Final = {
    "F": "#3b82c4",
    "B": "#b8691c",
    "I": "#b8691c",
    "W": "#5d7f28",
    "OVERLAP_F_B": "#9a6fb0",
    "REDUCE": "#b04a5a",
    "STEP": "#5f7a8a",
    "GATHER": "#b04a5a",
}
_KINDS: Final = {
    "parameters": "#3b82c4",
    "gradients": "#b8691c",
    "optimizer": "#5d7f28",
    "activations": "#9a6fb0",
    "transient": "#b04a5a",
    "communication": "#5f7a8a",
    "reserve": "#a08a4a",
    "context": "#8a8f98",
}
_STYLE: Final = (
    "text{font:12px system-ui,sans-serif;fill:#808898}"
    ".in{font-size:10px;fill:#fff}"
    ".frame{fill:none;stroke:#808898}"
)


def pictures() -> Iterator[tuple[str, str]]:
    """Name and SVG of each."""
    yield "schedules.svg", _schedules()
    yield "memory.svg", _memory()
    yield "layout.svg", _layout()


def _simulated(**options: Any) -> Estimate:
    return costmodel.simulate("gpt-6.7b", cluster="dgx-a100-80gb", **options)


def _schedules() -> str:
    """The same job under three schedules, on one scale of time."""
    job = {"gpus": 8, "tp": 2, "pp": 4, "dp": 1, "global_batch": 8, "micro_batch": 1}
    found = {
        "1F1B": _simulated(**job, schedule="1f1b"),
        "interleaved, 2 virtual stages": _simulated(
            **job, schedule="interleaved", virtual_stages=2
        ),
        "ZB-V, backward split into inputs and weights": _simulated(
            **job, schedule="zb-v"
        ),
    }
    longest_s = max(one.timeline.makespan_s for one in found.values())
    parts, top = [], 0.0
    for title, one in found.items():
        step = f"{title}: {format_seconds(one.step_time_s)} a step"
        parts += [_text(0, top + 16, step), *_timeline(one, top + 24, longest_s)]
        top += 24 + 4 * _ROW + 14
    legend = {"forward": "F", "backward (of inputs)": "B", "backward of weights": "W"}
    parts += _legend({name: _COLOURS[key] for name, key in legend.items()}, top + 10)
    return _svg(top + 26, parts, "Four pipeline ranks over time under three schedules")


def _timeline(estimate: Estimate, top: float, longest_s: float) -> Iterator[str]:
    series = estimate_series(estimate)["timeline"]
    start, seconds = _column(series["start_s"]), _column(series["seconds"])
    kind, batch = _column(series["kind"]), _column(series["micro_batch"])
    names, offsets = list(series["kinds"]), series["offsets"]
    scale = (WIDTH - _LEFT) / longest_s
    for rank, (first, last) in enumerate(pairwise(offsets)):
        y = top + rank * _ROW
        yield _text(0, y + 16, f"rank {rank}")
        for at in range(first, last):
            name = names[int(kind[at])]
            x, wide = _LEFT + start[at] * scale, max(seconds[at] * scale - 0.5, 0.5)
            yield _box(x, y, wide, _ROW - 4, _COLOURS[name])
            if wide > 9 and name in ("F", "B", "I", "W"):
                yield _text(x + wide / 2, y + 15, f"{int(batch[at])}", "in")


def _column(encoded: Mapping[str, str]) -> Any:
    kind = np.dtype(encoded["type"]).newbyteorder("<")
    return np.frombuffer(b64decode(encoded["base64"]), kind)


def _memory() -> str:
    """What fills each rank of a pipeline at its peak, against the capacity."""
    found = _simulated(gpus=8, tp=1, pp=4, dp=2, global_batch=64, micro_batch=2)
    most = found.capacity_bytes
    scale, parts, top = (WIDTH - _LEFT - 60) / most, [], 4.0
    for rank, one in enumerate(found.memory):
        sizes, x = one.document(), float(_LEFT)
        parts.append(_text(0, top + 16, f"rank {rank}"))
        for kind, colour in _KINDS.items():
            wide = sizes[kind] * scale
            parts.append(_box(x, top, wide, _ROW - 4, colour))
            x += wide
        parts.append(_text(x + 6, top + 16, f"{sizes['total'] / GiB:.1f} GiB"))
        top += _ROW
    edge = _LEFT + most * scale
    parts.append(f'<path class="frame" d="M{edge:.1f} 0V{top:.1f}"/>')
    parts.append(_text(edge - 8, top + 14, f"{most / GiB:.1f} GiB", "", "end"))
    parts += _legend(_KINDS, top + 34)
    return _svg(top + 68, parts, "Memory of four pipeline ranks by kind at the peak")


def _layout() -> str:
    """Sixteen GPUs of two nodes under tp 4, pp 2 and dp 2."""
    found = _simulated(gpus=16, tp=4, pp=2, dp=2, global_batch=64)
    layout, parts, top = found.layout, [], 4.0
    colours = ("#3b82c4", "#b8691c")
    for node in range(2):
        parts.append(_text(0, top + 30, f"node {node}"))
        place = f'x="{_LEFT}" y="{top}" width="640" height="64" rx="6"'
        parts.append(f'<rect class="frame" {place}/>')
        for column in range(8):
            rank = 8 * node + column
            x = _LEFT + 8 + column * 79
            stage, group = _place(layout, rank)
            parts.append(_box(x, top + 6, 71, 52, colours[stage]))
            said = (f"GPU {rank}", f"stage {stage}", f"replica {group}")
            for line, words in enumerate(said):
                parts.append(_text(x + 35, top + 21 + 15 * line, words, "in"))
        top += 76
    tensor, data, pipe = _groups(layout)
    for name, ranks, words in (
        ("tensor parallel", tensor, "split each layer, over NVLink"),
        ("data parallel", data, "hold the same weights, and sum gradients"),
        ("pipeline", pipe, "hand activations on, between the nodes"),
    ):
        parts.append(_text(_LEFT, top + 12, f"{name}: GPUs {ranks} {words}"))
        top += 18
    return _svg(top + 4, parts, "Which rank holds which stage and replica")


def _place(layout: Layout, rank: int) -> tuple[int, int]:
    """The stage that *rank* holds, and its replica."""
    for number, stage in enumerate(layout.stages):
        ranks = list(stage.mesh.ranks)
        if rank in ranks:
            return number, ranks.index(rank) // stage.mesh.tp
    raise ValueError(f"rank {rank} holds no stage")


def _groups(layout: Layout) -> tuple[str, str, str]:
    """The tensor-, data- and pipeline-parallel groups of rank 0."""
    meshes = [stage.mesh for stage in layout.stages]
    first = list(meshes[0].ranks)
    return (
        _run(first[: meshes[0].tp]),
        _run(first[:: meshes[0].tp]),
        _run([next(iter(one.ranks)) for one in meshes]),
    )


def _run(ranks: list[int]) -> str:
    """Ranks in words: a run of neighbours as `0–3`."""
    runs = [
        list(some) for _, some in groupby(ranks, lambda one: one - ranks.index(one))
    ]
    return ", ".join(
        f"{some[0]}–{some[-1]}" if len(some) > 1 else f"{some[0]}" for some in runs
    )


def _legend(colours: Mapping[str, str], top: float) -> Iterator[str]:
    x = float(_LEFT)
    for name, colour in colours.items():
        wide = 30 + 6.6 * len(name)
        if x + wide > WIDTH:
            x, top = float(_LEFT), top + 18
        yield _box(x, top - 9, 11, 11, colour)
        yield _text(x + 16, top, name)
        x += wide


def _box(x: float, y: float, wide: float, high: float, colour: str) -> str:
    return (
        f'<rect x="{x:.1f}" y="{y:.1f}" width="{wide:.1f}" height="{high:.1f}" '
        f'fill="{colour}"/>'
    )


def _text(x: float, y: float, words: str, kind: str = "", anchor: str = "start") -> str:
    anchor = "middle" if kind else anchor
    named = f' class="{kind}"' if kind else ""
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{named}>'
        f"{escape(words)}</text>"
    )


def _svg(high: float, parts: list[str], label: str) -> str:
    inner = "\n".join(parts)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {high:.0f}" '
        f'role="img" aria-label="{escape(label)}"><style>{_STYLE}</style>\n'
        f"{inner}\n</svg>\n"
    )
