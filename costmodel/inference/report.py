"""`simulate --inference`: the question of a command line, answered and shown."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from costmodel.inference.estimate import (
    InferenceEstimate,
    Passed,
    estimate,
    token_bytes,
)
from costmodel.inference.memory import prompts_together
from costmodel.inference.question import resolve
from costmodel.options import InferenceOptions, Pins
from costmodel.report import (
    assumed_words,
    breakdown_words,
    bytes_table,
    pairs_table,
    show_sweep,
    sweep,
)
from profiles.commandline import JobOptions, console, emit_json, warn
from profiles.errors import Contradiction, InvalidSpec
from profiles.hardware import DEFAULT_CLUSTER, Cluster, cluster
from profiles.models import Model, model
from profiles.units import format_bytes, format_seconds

if TYPE_CHECKING:
    from rich.console import Group


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
    return Group(
        title,
        pairs_table(rows),
        Text(),
        bytes_table([one.document() for one in found.held], _COLUMNS),
    )


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
    batch = f"largest global batch {most:,}" if most else "no batch fits"
    return f"{used}, {verdict} {room}; {batch}"


AXES: Final = (
    *("gpus", "seq-len", "prompt-len", "new-tokens", "global-batch"),
    *("tp", "pp", "dp", "ep", "micro-batch", "micro-batches"),
    *("precision", "kv-cache-dtype", "quantization", "group-size"),
)
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
    price = partial(_priced, named, where)
    if axes:
        wrong = (Contradiction, InvalidSpec)
        rows = list(sweep(axes, (job, pins, options), price, AXES, wrong))
        show_sweep(rows, SWEEP_COLUMNS, as_json=as_json)
        return
    found = price(job, pins, options)
    if as_json:
        emit_json(found.document())
        return
    for line in found.warnings:
        warn(line)
    console().print(inference_view(found))


def _priced(model: Model, cluster: Cluster, *asked: Any) -> InferenceEstimate:
    return estimate(resolve(model, cluster, *asked))
