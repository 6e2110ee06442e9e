"""`simulate --inference`: the question of a command line, answered and shown."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from costmodel.inference.estimate import (
    InferenceEstimate,
    Passed,
    estimate,
    sweep,
    token_bytes,
)
from costmodel.inference.memory import Held, prompts_together
from costmodel.inference.question import resolve
from costmodel.options import InferenceOptions, Pins
from costmodel.report import assumed_words, breakdown_words, pairs_table, show_sweep
from profiles.commandline import JobOptions, console, emit_json, warn
from profiles.hardware import DEFAULT_CLUSTER, cluster
from profiles.models import model
from profiles.units import GiB, MiB, format_bytes, format_seconds

if TYPE_CHECKING:
    from rich.console import Group
    from rich.table import Table


_BOUNDS: Final = {
    "memory_bandwidth": "memory bandwidth",
    "compute": "compute",
    "links": "links",
    "host": "the host",
}
_COLUMNS: Final = {
    "parameters": "params",
    "kv_cache": "KV cache",
    "activations": "activ",
    "communication": "comm",
    "reserve": "reserve",
    "context": "context",
    "total": "total",
}


def inference_view(found: InferenceEstimate) -> Group:
    """Everything `simulate --inference` shows."""
    from rich.console import Group
    from rich.text import Text

    asked = found.asked
    batch = asked.job.global_batch
    title = Text(
        f"{asked.job.model} served by {found.gpus} × {asked.machine.device.name}: "
        f"{batch} sequence{'' if batch == 1 else 's'} of {asked.prompt_len:,} + "
        f"{asked.new_tokens:,} tokens",
        style="bold",
    )
    rows = [
        ("layout", _layout_words(found)),
        ("prefill", _prefill_words(found)),
        ("decode", _decode_words(found)),
        ("", _least_words(found)),
        ("answers", _answers_words(found)),
        ("peak memory", _memory_words(found)),
        (
            "KV cache",
            f"{token_bytes(asked):,.0f} bytes a token ({asked.cache.value})",
        ),
        ("prefill breakdown", breakdown_words(_parts(found.prefill))),
        ("decode breakdown", breakdown_words(found.decode.breakdown_s(found.step_s))),
    ]
    if asked.assumed:
        rows.append(("assumed", assumed_words(asked.assumed)))
    return Group(title, pairs_table(rows), Text(), _memory_table(found.held))


def _parts(passed: Passed) -> dict[str, float]:
    return passed.breakdown_s(float(passed.latency_s))


def _layout_words(found: InferenceEstimate) -> str:
    asked, choice = found.asked, found.asked.choice
    sizes = {name: getattr(choice, name) for name in ("tp", "pp", "dp", "ep")}
    degrees = " · ".join(f"{name} {size}" for name, size in sizes.items() if size > 1)
    stored = asked.stored.quantization
    weights = f"{choice.precision} weights"
    if stored:
        weights = f"{stored} weights in groups of {asked.stored.group_size}"
    parts = (
        degrees or "one device",
        f"micro-batch {choice.micro_batch} × {asked.micro_batches}",
        weights,
    )
    return ", ".join(parts)


def _prefill_words(found: InferenceEstimate) -> str:
    asked = found.asked
    together = prompts_together(asked, asked.choice.micro_batch)
    first = format_seconds(float(found.prefill.latency_s))
    rate = asked.job.global_batch * asked.prompt_len / found.prefill_s
    some = f"{together} prompts" if together > 1 else "a prompt"
    return (
        f"{first} for {some}, {rate:,.0f} tokens/s, MFU {found.prefill_mfu:.1%}; "
        f"bottleneck: {_BOUNDS[found.prefill.bound]}"
    )


def _decode_words(found: InferenceEstimate) -> str:
    batch = found.asked.job.global_batch
    return (
        f"{format_seconds(found.step_s)} a token at {found.asked.job.seq_len:,} tokens "
        f"of context, {batch / found.step_s:,.0f} tokens/s; bottleneck: "
        f"{_BOUNDS[found.decode.bound]}"
    )


def _least_words(found: InferenceEstimate) -> str:
    times = found.step_s / found.least_step_s
    read = float(found.decode.weight_bytes + found.decode.cache_bytes)
    return (
        f"{times:.2f} × the {format_seconds(found.least_step_s)} that reading "
        f"{format_bytes(read)} a rank takes"
    )


def _answers_words(found: InferenceEstimate) -> str:
    tokens = found.asked.job.global_batch * found.asked.new_tokens
    rate = f"{tokens / found.total_s:,.0f} new tokens/s"
    return f"{format_seconds(found.total_s)} for all, {rate}"


def _memory_words(found: InferenceEstimate) -> str:
    asked = found.asked
    used = format_bytes(found.peak_memory_bytes)
    room = format_bytes(asked.machine.device.capacity_bytes)
    verdict = "fits in" if found.fits else "DOES NOT FIT in"
    most = found.largest_global_batch
    batch = f"largest global batch {most:,}" if most else "nor does any batch"
    return f"{used}, {verdict} {room}; {batch}"


def _memory_table(held: tuple[Held, ...]) -> Table:
    from rich.table import Table

    table = Table(box=None, padding=(0, 1), header_style="bold")
    large = max(one.total for one in held) >= GiB
    unit, scale = ("GiB", GiB) if large else ("MiB", MiB)
    table.add_column(f"{unit}  stage")
    for name in _COLUMNS.values():
        table.add_column(name, justify="right")
    before = None
    for stage, one in enumerate(held):
        if one == before and stage < len(held) - 1:
            continue
        before, sizes = one, one.document()
        cells = [f"{sizes[name] / scale:.1f}" for name in _COLUMNS]
        table.add_row(str(stage), *cells)
    return table


SWEEP_COLUMNS: Final[Mapping[str, Callable[[InferenceEstimate], str]]] = {
    "first token": lambda found: format_seconds(float(found.prefill.latency_s)),
    "step": lambda found: format_seconds(found.step_s),
    "tokens/s": lambda found: f"{found.asked.job.global_batch / found.step_s:,.0f}",
    "tokens/s/GPU": lambda found: (
        f"{found.asked.job.global_batch / found.step_s / found.gpus:,.1f}"
    ),
    "peak memory": lambda found: format_bytes(found.peak_memory_bytes),
    "fits": lambda found: "yes" if found.fits else "no",
}


def answer(
    job: JobOptions,
    pins: Pins,
    options: InferenceOptions,
    axes: Sequence[str],
    *,
    as_json: bool,
) -> None:
    """Print the estimate of the command line's question, or those along *axes*, as a
    table or one JSON document."""
    job.require("model")
    named = model(job.model or "")
    where = cluster(job.cluster or DEFAULT_CLUSTER)
    if axes:
        rows = list(sweep(named, where, job, pins, options, axes))
        show_sweep(rows, SWEEP_COLUMNS, as_json=as_json)
        return
    found = estimate(resolve(named, where, job, pins, options))
    if as_json:
        emit_json(found.document())
        return
    for line in found.warnings:
        warn(line)
    console().print(inference_view(found))
