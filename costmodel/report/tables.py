"""Estimates as tables for a terminal, and what is asked around them in a few lines."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from typing import TYPE_CHECKING, Any

from costmodel.layout import (
    AS_IT_IS,
    CORE,
    EVERYTHING,
    Action,
    Layout,
    Offload,
    Retention,
    operator_of,
    split_layers,
)
from costmodel.machine import Machine
from costmodel.options import RunOptions
from costmodel.report.data_parallel_baseline import (
    ComparedProcesses,
    compare_data_parallel,
)
from costmodel.report.networks import designs, network_table
from costmodel.simulation import Estimate, dtr_rows, rematerialized
from costmodel.stages import Away, Memory
from costmodel.training_run import BatchRamp, ramped, training, training_rows
from profiles.units import TFLOPS, GiB, MiB, format_bytes, format_seconds

if TYPE_CHECKING:
    from rich.console import Group
    from rich.table import Table

_SHORT = {
    "parameters": "params",
    "gradients": "grads",
    "optimizer": "optim",
    "activations": "activ",
    "transient": "trans",
    "communication": "comm",
    "reserve": "reserve",
    "context": "context",
    "total": "total",
}
_WORDS = {
    "tensor_comm": "tensor parallel",
    "context_comm": "context parallel",
    "expert_comm": "expert parallel",
    "pipeline_comm": "pipeline P2P",
    "data_comm": "data parallel",
}
WORTH_TELLING = 0.01  # of a peak


def layout_words(layout: Layout) -> str:
    """A layout in one line, as people say it.

    Dimensions of size one are left out; the micro-batch and schedule always stand.
    """
    summary = layout.summary
    degrees = [
        f"{name} {summary[name] if summary[name] is not None else 'mixed'}"
        for name in ("tp", "pp", "dp", "cp", "ep")
        if summary[name] != 1
    ]
    widths = {stage.mesh.etp for stage in layout.stages}
    if widths != {1}:
        degrees.append(f"etp {widths.pop() if len(widths) == 1 else 'mixed'}")
    plan = layout.stages[len(layout.stages) // 2].plans[-1]
    parts = [" · ".join(degrees) or "one device"]
    if layout.pp > 1:
        virtual = f" × {layout.virtual_stages}" if layout.virtual_stages > 1 else ""
        parts.append(f"{layout.schedule}{virtual}")
    if (cut := cut_words([stage.body for stage in layout.stages])) is not None:
        parts.append(cut)
    if summary["micro_batch"] is None or summary["tp"] is None:
        parts.append(f"{layout.micro_batches} micro-batches")
        parts.append(", ".join(_stages(layout)))
    else:
        parts.append(f"micro-batch {summary['micro_batch']} × {layout.micro_batches}")
    if summary["dp"] != 1 or summary["cp"] != 1:
        whole = summary["zero_group"] in (summary["dp"], None) or plan.zero == 0
        over = "" if whole else f" over {summary['zero_ranks']} ranks"
        parts.append(f"ZeRO-{summary['zero']}{over}")
    if layout.zero_plus.anything:
        parts.append(str(layout.zero_plus))
    if plan.sharding == "megatron-sp":
        parts.append("sequence parallel")
    if any(plan.modules for stage in layout.stages for plan in stage.plans):
        parts.append("per-operator shardings")
    parts += _again(layout)
    away = _away(layout)
    if away.anything:
        parts.append(f"offload {away} to {away.tier}")
    if layout.compression != AS_IT_IS:
        parts.append(f"activations in {layout.compression} bits")
    return ", ".join(parts)


def cut_words(counts: Sequence[int]) -> str | None:
    """The layers of each stage, where they are not as even as can be.

    >>> cut_words([8, 9, 9, 6]), cut_words([3, 3, 3, 2])
    ('layers 8, 2 × 9, 6', None)
    """
    if tuple(counts) == split_layers(sum(counts), len(counts)):
        return None
    runs = [(count, len(list(alike))) for count, alike in groupby(counts)]
    each = (f"{often} × {count}" if often > 1 else f"{count}" for count, often in runs)
    return f"layers {', '.join(each)}"


def _stages(layout: Layout) -> Iterator[str]:
    """Stages that differ in mesh, one by one: `12 layers on tp 2 · dp 4`."""
    for stage in layout.stages:
        sizes = {"tp": stage.mesh.tp, "cp": stage.mesh.cp, "dp": stage.mesh.dp}
        degrees = [f"{name} {size}" for name, size in sizes.items() if size > 1]
        many = f"{stage.body} layer{'' if stage.body == 1 else 's'}"
        yield f"{many} on {' · '.join(degrees) or 'one device'}"


def _again(layout: Layout) -> Iterator[str]:
    """What numbered layers recompute: in all of them, in some, or by layer."""
    plans = [
        plan
        for stage in layout.stages
        for name, plan in zip(stage.layers, stage.plans, strict=True)
        if name.isdigit()
    ]
    made = Counter(_made(plan.retention) for plan in plans)
    kept = made.pop((), 0)
    if len(made) == 1:
        names, count = made.popitem()
        some = f" in {count} of {len(plans)} layers" if kept else ""
        yield f"recompute {_preset(names)}{some}"
    elif made and all((EVERYTHING, 1.0) in names for names in made):
        yield "recompute full, in segments"
    elif made:
        yield "recompute layer by layer"


def _made(retention: Retention) -> tuple[tuple[str, float], ...]:
    """What is recomputed, each with its share."""
    return tuple((name, retention.share(name)) for name in sorted(retention.recomputed))


def _preset(made: tuple[tuple[str, float], ...]) -> str:
    """The preset that makes so much again, or the operators that do."""
    if (EVERYTHING, 1.0) in made:
        return "full"
    if made == ((CORE, 1.0),):
        return "selective"
    return ", ".join(
        operator_of(name) + ("" if share == 1 else f"={share:g}")
        for name, share in made
    )


def _away(layout: Layout) -> Offload:
    """What is offloaded, with the largest share of any layer's activations."""
    treated = [one for p in layout.plans for one in p.retention.tensors.values()]
    shares = [one.ratio for one in treated if one.action is Action.OFFLOAD]
    return replace(layout.away, activations=max(shares, default=0.0))


def headline(estimate: Estimate, *, details: bool = True) -> list[tuple[str, str]]:
    """The figures that answer "how fast, and does it fit?", and whence they come."""
    low, high = map(format_seconds, estimate.interval["step_time_s"])
    peak = f"{estimate.peak_flops_per_s / TFLOPS:,.4g} TFLOP/s"
    number = estimate.layout.precision.matmul.value
    step = format_seconds(estimate.step_time_s)
    tokens, batch = estimate.tokens_per_s_per_gpu, estimate.job.global_batch
    chance = estimate.interval["probability_fits"]
    capacity = format_bytes(estimate.capacity_bytes)
    here = all(
        float(one.needed) <= most
        for one, most in zip(estimate.memory, estimate.capacities_bytes, strict=True)
    )
    verdict = "fits in" if here else "DOES NOT FIT in"
    sequences = batch / estimate.step_time_s
    used = _used(estimate)
    utilisation = f"MFU {estimate.mfu:.1%}   HFU {estimate.hfu:.1%}"
    sources = estimate.price_sources
    throughput = f"{tokens:,.0f} tokens/s per GPU   {sequences:,.1f} sequences/s"
    if estimate.job.samples != "sequences":
        throughput = f"{sequences:,.1f} {estimate.job.samples}/s"
    utilised = f"{utilisation} of {peak} {number} ({estimate.counted.brief})"
    if not details:
        first = throughput.partition("   ")[0]
        throughput = f"{first}   MFU {estimate.mfu:.1%} ({estimate.counted.brief})"
    return [
        ("step time", f"{step}   (80 % interval {low} – {high})"),
        ("throughput", throughput),
        *([("utilisation", utilised)] if details else []),
        ("peak memory", f"{used}, {verdict} {capacity} (probability {chance:.0%})"),
        *([] if estimate.away is None else [("offloaded", _away_words(estimate.away))]),
        *([] if sources is None else [("price", str(sources))]),
    ]


def _used(estimate: Estimate) -> str:
    """What the device shows; and what of it has to be there, where that is less."""
    shown, needed = estimate.peak_memory_bytes, estimate.peak_needed_bytes
    if needed >= shown * (1 - WORTH_TELLING):
        return format_bytes(shown)
    return f"{format_bytes(shown)}, of which it needs {format_bytes(needed)}"


def _away_words(away: Away) -> str:
    """What is on the hosts of a node, or on its drives."""
    if away.capacity_bytes is None:
        return f"{away.words}, of unknown size"
    verdict = "fits in" if away.fits else "DOES NOT FIT in"
    return f"{away.words}, {verdict} {format_bytes(away.capacity_bytes)}"


def pairs_table(pairs: Iterable[tuple[str, str]]) -> Table:
    """Names on the left, values on the right, no lines."""
    from rich.table import Table

    table = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in pairs:
        table.add_row(name, value)
    return table


def breakdown_words(breakdown_s: Mapping[str, float]) -> str:
    """Where the step goes, largest share first; parts under 0.05 % are left out."""
    total = sum(breakdown_s.values())
    shares = sorted(breakdown_s.items(), key=lambda item: -item[1])
    return ", ".join(
        f"{_WORDS.get(name, name)} {seconds / total:.1%}"
        for name, seconds in shares
        if seconds / total >= 0.0005
    )


def memory_table(memory: Sequence[Memory], *, details: bool = True) -> Table:
    """Bytes by kind, one row for each run of equal pipeline ranks; without *details*
    the ends and the fullest."""
    rows = [one.document() for one in memory]
    return bytes_table(rows, _SHORT, 8 if details else 3, gaps=details)


def bytes_table(
    ranks: Sequence[Mapping[str, float]],
    columns: Mapping[str, str],
    most_rows: int = 8,
    *,
    gaps: bool = True,
) -> Table:
    """Bytes of each pipeline rank by kind; *columns* names them, `total` among them.
    One row for each run of equal ranks, of many the ends and the fullest, with *gaps*
    between them."""
    from rich.table import Table

    table = Table(box=None, padding=(0, 1), header_style="bold")
    most = max(one["total"] for one in ranks)
    unit, scale = ("GiB", GiB) if most >= GiB else ("MiB", MiB)
    table.add_column(f"{unit}  stage")
    for name, short in columns.items():
        style = "bold" if name == "total" else None
        table.add_column(short, justify="right", style=style)
    before = -1
    for first, last in _shown_runs(ranks, most_rows):
        if gaps and first != before + 1:
            table.add_row("…")
        before = last
        cells = [f"{ranks[first][name] / scale:.1f}" for name in columns]
        table.add_row(f"{first}" if first == last else f"{first}–{last}", *cells)
    return table


def _shown_runs(
    ranks: Sequence[Mapping[str, float]], most: int
) -> list[tuple[int, int]]:
    """First and last of equal neighbours; of too many runs the ends and the fullest."""
    runs: list[tuple[int, int]] = []
    for _, some in groupby(range(len(ranks)), lambda rank: ranks[rank]):
        numbers = list(some)
        runs.append((numbers[0], numbers[-1]))
    if len(runs) <= most:
        return runs
    fullest = sorted(runs, key=lambda run: -ranks[run[0]]["total"])[: most - 2]
    return sorted({runs[0], runs[-1], *fullest})


def estimate_view(estimate: Estimate, *, details: bool = False) -> Group:
    """What `simulate` shows of one layout: a sentence, what is worth knowing and, with
    *details*, the rest."""
    from rich.console import Group
    from rich.text import Text

    rows = [
        ("layout", layout_words(estimate.layout)),
        ("batch", estimate.job.step_words),
        *headline(estimate, details=details),
        ("time breakdown", breakdown_words(estimate.breakdown_s)),
    ]
    if estimate.assumed:
        rows.append(("assumed", assumed_words(estimate.assumed, details=details)))
    return Group(
        Text(_sentence(estimate), style="bold"),
        pairs_table(rows),
        Text(),
        memory_table(estimate.memory, details=details),
    )


def _sentence(estimate: Estimate) -> str:
    """The answer, in one."""
    step = format_seconds(estimate.step_time_s)
    used, most = estimate.peak_needed_bytes, estimate.capacity_bytes
    verdict = "and fits in" if estimate.fits else "and DOES NOT FIT in"
    return (
        f"{estimate.job.model} on {estimate.layout.gpus:,} × {estimate.device} takes "
        f"{step} a step, {verdict} memory ({format_bytes(used)} of "
        f"{format_bytes(most)})."
    )


MOST_ASSUMED = 5
_TOLD_FIRST = (
    *("cluster", "gpus", "framework", "precision", "global_batch", "seq_len"),
    *("optimizer", "micro_batch", "schedule", "dp"),
)


def assumed_words(assumed: Mapping[str, Any], *, details: bool = True) -> str:
    """Every default that was used, as options would say it; without *details* those
    that decide most.

    >>> assumed_words({"zero": 1, "sequence_parallel": True})
    'zero 1, sequence-parallel on'
    """
    words = {True: "on", False: "off"}
    names = list(assumed)
    if not details and len(names) > MOST_ASSUMED + 1:
        first = [name for name in _TOLD_FIRST if name in assumed]
        names = (first + [name for name in names if name not in first])[:MOST_ASSUMED]
    said = ", ".join(
        f"{name.replace('_', '-')} {words[value] if isinstance(value, bool) else value}"
        for name in names
        for value in (assumed[name],)
    )
    left = len(assumed) - len(names)
    return f"{said} and {left} more" if left else said


Rows = tuple[tuple[str, str], ...]


def extras(
    found: Estimate,
    on: Machine,
    *,
    run: RunOptions,
    compares: bool,
    radix: int | None = None,
    dtr: float | None = None,
) -> Iterator[tuple[str, dict[str, Any], Rows | Table]]:
    """What the questions around a layout's price add: a member of the JSON document, by
    name, and rows or a table that stand below the price.

    A whole *run*; where it *compares*, data parallelism in one process; with a *radix*,
    networks of such switches; and dynamic rematerialization in a share *dtr* of the
    bytes.
    """
    if run.tokens is not None:
        ramp = BatchRamp.of(run)
        rising = None if ramp is None else ramped(found, on, ramp, run.tokens)
        whole = training(found, run, rising)
        yield "training", whole, training_rows(whole)
    if compares:
        compared = compare_data_parallel(found, on)
        yield "data_parallel", compared.document(), compared_rows(compared)
    if radix is not None:
        networks = designs(found, on, radix)
        document = {"networks": [one.document() for one in networks]}
        yield "network_designs", document, network_table(networks)
    if dtr is not None:
        remade = rematerialized(found, on, dtr)
        yield "dtr", remade.document(), tuple(dtr_rows(remade))


def compared_rows(compared: ComparedProcesses) -> tuple[tuple[str, str], ...]:
    """How much slower one process is, where its step goes, and whose memory fills."""
    single, distributed = compared.single, compared.distributed
    first, others, each = (
        format_bytes(float(one.total))
        for one in (single.first, single.others, distributed.memory[0])
    )
    verdict = "" if compared.fits else ", which DOES NOT FIT"
    slower = (
        f"{format_seconds(single.step_time_s)} a step, {compared.slowdown:.2f} times "
        f"the {format_seconds(distributed.step_time_s)} of DistributedDataParallel"
    )
    filled = (
        f"GPU 0 {first}{verdict}, the others {others}; DistributedDataParallel's {each}"
    )
    return (
        ("nn.DataParallel", slower),
        ("its breakdown", breakdown_words(single.breakdown_s)),
        ("its peak memory", filled),
    )
