"""The sections of a page about one estimate, as HTML; all that is given is escaped."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from itertools import pairwise
from typing import Any, Final

from costmodel.layout import Layout, Stage
from costmodel.report import headline, layout_words
from costmodel.simulation import Estimate
from profiles.hardware import Cluster, Figure, Island
from profiles.units import GB, GiB, format_bytes, format_seconds

MOST_STAGES: Final = 16  # that are drawn one by one; of more, the ends
MOST_WHOLE: Final = 9  # characters of a cell that is not broken
_ZOOMS: Final = {
    "in": ("+", "zoom in"),
    "out": ("−", "zoom out"),
    "left": ("◀", "earlier"),
    "right": ("▶", "later"),
    "all": ("whole step", "show the whole step"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """A part of a page: *name* is its anchor, *html* what stands under its title."""

    name: str
    title: str
    html: str


def rows(heads: Sequence[str], body: Iterable[Sequence[object]], kind: str = "") -> str:
    """A table that scrolls where the page is narrow.

    >>> "<td>&lt;b&gt;</td>" in rows(["a"], [["<b>"]])
    True
    """
    head = "".join(f'<th scope="col">{escape(one)}</th>' for one in heads)
    lines = "".join(
        f"<tr>{''.join(f'<td>{_cell(cell)}</td>' for cell in row)}</tr>" for row in body
    )
    of = f' class="{kind}"' if kind else ""
    return (
        f'<div class="scroll"><table{of}><thead><tr>{head}</tr></thead>'
        f"<tbody>{lines}</tbody></table></div>"
    )


def _cell(value: object) -> str:
    """A number stays on one line with its unit."""
    text = escape(str(value))
    return text if len(text) > MOST_WHOLE else text.replace(" ", "&nbsp;")


def facts(pairs: Iterable[tuple[str, str]]) -> str:
    """Names on the left, values on the right."""
    lines = "".join(
        f'<tr><th scope="row">{escape(name)}</th><td>{escape(value)}</td></tr>'
        for name, value in pairs
    )
    return f'<table class="facts"><tbody>{lines}</tbody></table>'


def chart(name: str, label: str, caption: str, *, zooms: bool = False) -> str:
    """Where a chart goes, with its legend, what it shows in words, and its buttons."""
    buttons = "".join(
        f'<button type="button" data-zoom="{name}:{how}" title="{words}" '
        f'aria-label="{words}">{sign}</button> '
        for how, (sign, words) in _ZOOMS.items()
    )
    tools = f'<p class="zoom">{buttons}</p>' if zooms else ""
    note = f'<p class="note" id="{name}-note"></p>' if zooms else ""
    return (
        f'<figure aria-label="{escape(label)}">{tools}'
        f'<ul class="legend" id="{name}-legend"></ul><div id="{name}-chart"></div>'
        f"{note}<figcaption>{escape(caption)}</figcaption></figure>"
    )


def labelled(title: str, html: str) -> str:
    """Something that is folded until it is asked for."""
    return f"<details><summary>{escape(title)}</summary>{html}</details>"


def sentence(estimate: Estimate) -> str:
    """The answer in a sentence."""
    job, layout = estimate.job, estimate.layout
    verdict = "fits in" if estimate.fits else "does not fit in"
    return (
        f"{job.model} on {layout.gpus:,} × {estimate.device}: "
        f"{layout_words(layout)} takes {format_seconds(estimate.step_time_s)} a step, "
        f"{estimate.tokens_per_s_per_gpu:,.0f} tokens/s per GPU, and needs "
        f"{format_bytes(estimate.peak_memory_bytes)}, which {verdict} "
        f"{format_bytes(estimate.capacity_bytes)}."
    )


def estimate_sections(estimate: Estimate, cluster: Cluster) -> list[Section]:
    """All that a page says of one layout priced on *cluster*."""
    return [
        Section(name="figures", title="Figures", html=facts(_headline(estimate))),
        _layout(estimate.layout, cluster),
        _timeline(estimate),
        _memory(estimate),
        _breakdown(estimate),
        _sources(estimate, cluster),
        Section(name="assumed", title="Assumed", html=_assumed(estimate)),
        Section(name="warnings", title="Warnings", html=_warnings(estimate)),
    ]


def _headline(estimate: Estimate) -> list[tuple[str, str]]:
    job = estimate.job
    asked = (
        f"{job.global_batch:,} sequences of {job.seq_len:,} tokens a step, "
        f"{job.optimizer}, {estimate.layout.precision_name}"
    )
    return [
        ("job", asked),
        ("layout", layout_words(estimate.layout)),
        *headline(estimate),
    ]


def _layout(layout: Layout, cluster: Cluster) -> Section:
    numbers = list(range(len(layout.stages)))
    table = ""
    if len(numbers) > MOST_STAGES:
        body = [(number, *_said(layout.stages[number])) for number in numbers]
        heads = ["stage", "pipeline rank", "layers", "ranks", "mesh", "states"]
        table = labelled(f"All {len(numbers):,} stages", rows(heads, body, "words"))
        numbers = [*numbers[: MOST_STAGES // 2 - 1], *numbers[-1:]]
    items = "".join(
        f"<li{_gap(before, number)}>{_stage(number, layout.stages[number])}</li>"
        for before, number in pairwise([-1, *numbers])
    )
    said = (
        "Stages in model order, left to right; each arrow is a transfer of activations "
        "forward and of gradients back."
    )
    links = rows(["between", "ranks", "link"], _links(layout, cluster), "words")
    html = f'<p class="note">{said}</p><ol class="stages">{items}</ol>{table}{links}'
    return Section(name="layout", title="Layout", html=html)


def _gap(before: int, number: int) -> str:
    return "" if number == before + 1 else ' class="gap"'


def _stage(number: int, stage: Stage) -> str:
    held, *parts = _said(stage)
    lines = "<br>".join(escape(one) for one in parts)
    return f"<b>stage {number} · rank {escape(held)}</b>{lines}"


def _said(stage: Stage) -> tuple[str, str, str, str, str]:
    """Who holds a stage, its layers, ranks, mesh and states, in words."""
    mesh = stage.mesh
    sizes = {"tp": mesh.tp, "cp": mesh.cp, "dp": mesh.dp, "ep": mesh.ep}
    degrees = " × ".join(f"{name} {size}" for name, size in sizes.items() if size > 1)
    levels = sorted({f"ZeRO-{plan.zero}" for plan in stage.plans})
    again = any(plan.retention.recomputed for plan in stage.plans)
    return (
        ", ".join(str(rank) for rank in stage.held_by),
        _layers(stage),
        f"ranks {mesh.ranks} ({len(mesh.ranks):,})",
        degrees or "one device",
        ", ".join(levels) + (", recompute" if again else ""),
    )


def _layers(stage: Stage) -> str:
    """The first and the last layer; embedding, norm and head have names."""
    first, last = stage.layers[0], stage.layers[-1]
    span = first if first == last else f"{first} – {last}"
    return f"layers {span}"


def _links(layout: Layout, cluster: Cluster) -> Iterator[tuple[str, str, str]]:
    """Which link each kind of communication takes, of stages with the first's mesh."""
    if len(cluster.islands) > 1:
        yield "stages", "several islands", str(cluster.name)
        return
    mesh, island = layout.stages[0].mesh, cluster.island
    first = mesh.ranks.spans[0][0]
    spans = {
        "tensor parallel": (mesh.tp, 1),
        "context parallel": (mesh.cp, mesh.tp),
        "data parallel": (mesh.dp, mesh.tp * mesh.cp),
    }
    for name, (size, stride) in spans.items():
        if size > 1:
            last = first + (size - 1) * stride
            link = _link(island, first, last)
            yield name, f"{size} ranks, {stride} apart", link
    if layout.pp > 1:
        wide = len(mesh.ranks)
        yield "pipeline", f"2 ranks, {wide} apart", _link(island, first, first + wide)


def _link(island: Island, first: int, last: int) -> str:
    """The innermost level whose one domain holds both ranks."""
    for level in island.levels:
        if level.devices is None or first // level.devices == last // level.devices:
            speed = f"{level.bytes_per_s / GB:,.3g} GB/s per device, one way"
            return f"{level.name} ({level.kind}), {speed}"
    return island.levels[-1].name


def _timeline(estimate: Estimate) -> Section:
    timeline = estimate.timeline
    heads = ["rank", "compute", "P2P", "bubble", "reduction", "step", "gather", "idle"]
    body = []
    for rank in range(len(timeline.start_s)):
        account = timeline.account(rank)
        seconds = (
            account.compute_s,
            account.pipeline_comm_s,
            account.bubble_s,
            account.reduce_s + account.others_s,
            account.step_s,
            account.gather_s,
            account.idle_s,
        )
        body.append((rank, *(f"{one:.4g}" for one in seconds)))
    passes = int((timeline.program.rows >= 0).sum())
    said = (
        f"{passes:,} passes on {len(timeline.start_s):,} pipeline ranks in "
        f"{format_seconds(timeline.makespan_s)}; gaps are waits."
    )
    how = " Zoom by the buttons, by a box, or by Ctrl and the wheel; drag to move."
    html = chart("timeline", f"Pipeline timeline: {said}", said + how, zooms=True)
    table = labelled("Seconds of each pipeline rank, as a table", rows(heads, body))
    return Section(name="timeline", title="Pipeline timeline", html=html + table)


def _memory(estimate: Estimate) -> Section:
    documents = [one.document() for one in estimate.memory]
    heads = ["rank", *documents[0], "capacity"]
    body = [
        (
            rank,
            *(f"{value / GiB:.2f}" for value in document.values()),
            f"{capacity / GiB:.2f}",
        )
        for rank, (document, capacity) in enumerate(
            zip(documents, estimate.capacities_bytes, strict=True)
        )
    ]
    peak = format_bytes(estimate.peak_memory_bytes)
    said = f"Memory of a device over the step: at most {peak}"
    label = f"{said} of {format_bytes(estimate.capacity_bytes)}"
    caption = (
        f"{label}. What stays all along is drawn as it is at the peak; activations and "
        "working sets follow the schedule, scaled to the estimated peak."
    )
    table = labelled(
        "GiB at the peak of each pipeline rank, as a table", rows(heads, body)
    )
    html = chart("memory", label, caption) + table
    return Section(name="memory", title="Memory over time", html=html)


def _breakdown(estimate: Estimate) -> Section:
    total = estimate.step_time_s
    parts = sorted(estimate.breakdown_s.items(), key=lambda item: -item[1])
    body = [
        (name.replace("_", " "), f"{seconds:.6g}", f"{seconds / total:.1%}")
        for name, seconds in parts
    ]
    label = "Where the step goes: " + ", ".join(
        f"{name} {share}" for name, _, share in body[:3]
    )
    caption = f"{label}. On the rank that ends last, every instant counted once."
    table = labelled("The same as a table", rows(["part", "seconds", "share"], body))
    html = chart("breakdown", label, caption) + table
    return Section(name="breakdown", title="Time breakdown", html=html)


def _sources(estimate: Estimate, cluster: Cluster) -> Section:
    interval = estimate.interval
    low, high = interval["step_time_s"]
    least, most = interval["peak_memory_bytes"]
    priced = estimate.price_sources
    known = [
        ("step time, p10 – p90", f"{format_seconds(low)} – {format_seconds(high)}"),
        ("peak memory, p10 – p90", f"{format_bytes(least)} – {format_bytes(most)}"),
        ("probability that it fits", f"{interval['probability_fits']:.1%}"),
        ("FLOPs counted", str(estimate.counted)),
        (
            "prices",
            "rates and links of the catalogue, corrected by published runs"
            if priced is None
            else str(priced),
        ),
    ]
    said = rows(["what", "figure", "source"], _figures(estimate, cluster), "words")
    html = facts(known) + labelled("Figures of devices and links, and sources", said)
    return Section(name="sources", title="Sources and uncertainty", html=html)


def _figures(estimate: Estimate, cluster: Cluster) -> Iterator[tuple[str, str, str]]:
    matmul = estimate.layout.precision.matmul.value
    for island in cluster.islands:
        device = island.device
        named: dict[str, Figure | None] = {
            f"{device.name}: dense {matmul}": device.peak.get(matmul),
            f"{device.name}: memory": device.memory,
            f"{device.name}: usable memory": device.usable_memory,
            f"{device.name}: memory bandwidth": device.memory_bandwidth,
            f"{device.name}: cost": device.cost,
            "node: price": island.price,
            "node: time between failures": island.mtbf,
        }
        for name, figure in named.items():
            if figure is not None:
                yield name, f"{figure.value:g} {figure.unit}", figure.source
        for level in island.levels:
            figure = level.bandwidth
            name = f"{level.name} ({level.kind})"
            yield name, f"{figure.value:g} {figure.unit}", figure.source


def _assumed(estimate: Estimate) -> str:
    pairs = [
        (name.replace("_", "-"), _plain(v)) for name, v in estimate.assumed.items()
    ]
    return facts(pairs) if pairs else "<p>Nothing: everything was given.</p>"


def _plain(value: Any) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {_plain(one)}" for name, one in value.items())
    return str(value)


def _warnings(estimate: Estimate) -> str:
    if not estimate.warnings:
        return "<p>None.</p>"
    return f"<ul>{''.join(f'<li>{escape(one)}</li>' for one in estimate.warnings)}</ul>"
