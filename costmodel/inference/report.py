"""An estimate of inference as one JSON document.

An estimate of inference for a terminal.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from costmodel.inference.estimate import (
    BOUNDS,
    InferenceEstimate,
    Passed,
    prefill_flops,
    token_bytes,
)
from costmodel.inference.memory import Held, prompts_together
from costmodel.inference.question import Question
from costmodel.report import assumed_words, breakdown_words, pairs_table
from profiles.units import GiB, MiB, format_bytes, format_seconds

if TYPE_CHECKING:
    from rich.console import Group
    from rich.table import Table


def document(found: InferenceEstimate) -> dict[str, Any]:
    """What `simulate --inference --json` prints; units are in the names."""
    asked = found.asked
    choice, batch = asked.choice, asked.job.global_batch
    fullest = max(found.held, key=lambda one: one.total)
    return {
        "fits": found.fits,
        "peak_memory_bytes": fullest.total,
        "capacity_bytes": asked.machine.device.capacity_bytes,
        "largest_global_batch": (
            found.largest_micro_batch * asked.micro_batches * choice.dp
        ),
        "memory": [
            {"stage": stage, **held.document()} for stage, held in enumerate(found.held)
        ],
        "kv_cache_bytes_per_token": token_bytes(asked),
        "context_tokens": asked.job.seq_len,
        "prompt_tokens": asked.prompt_len,
        "new_tokens": asked.new_tokens,
        "prefill": _prefill_document(found),
        "decode": _decode_document(found),
        "generation": {
            "time_s": found.total_s,
            "decode_time_s": found.generation_s,
            "tokens_per_s": batch * asked.new_tokens / found.total_s,
        },
        "layout": _layout_document(asked),
        "assumed": dict(asked.assumed),
        "warnings": list(warnings(found)),
    }


def _prefill_document(found: InferenceEstimate) -> dict[str, Any]:
    asked, first_s = found.asked, float(found.prefill.latency_s)
    batch = asked.job.global_batch
    return {
        "time_s": found.prefill_s,
        "time_to_first_token_s": first_s,
        "prompts_together": prompts_together(asked, asked.choice.micro_batch),
        "tokens_per_s": batch * asked.prompt_len / found.prefill_s,
        "tokens_per_s_per_gpu": batch * asked.prompt_len / found.prefill_s / found.gpus,
        "flops_per_token": prefill_flops(asked.job, asked.prompt_len)
        / asked.prompt_len,
        "mfu": prefill_mfu(found),
        **_bound(found.prefill),
        "breakdown_s": found.prefill.breakdown_s(first_s),
    }


def _decode_document(found: InferenceEstimate) -> dict[str, Any]:
    batch = found.asked.job.global_batch
    return {
        "step_time_s": found.step_s,
        "tokens_per_s": batch / found.step_s,
        "tokens_per_s_per_gpu": batch / found.step_s / found.gpus,
        "least_step_time_s": found.least_step_s,
        "weight_bytes_read": float(found.decode.weight_bytes),
        "kv_cache_bytes_read": float(found.decode.cache_bytes),
        **_bound(found.decode),
        "breakdown_s": found.decode.breakdown_s(found.step_s),
    }


def _layout_document(asked: Question) -> dict[str, Any]:
    choice, quantization = asked.choice, asked.stored.quantization
    return {
        **{name: getattr(choice, name) for name in ("tp", "pp", "dp", "ep")},
        "micro_batch": choice.micro_batch,
        "micro_batches": asked.micro_batches,
        "global_batch": asked.job.global_batch,
        "precision": choice.precision,
        "kv_cache_dtype": asked.cache.value,
        "quantization": quantization,
        "group_size": asked.stored.group_size if quantization else None,
        "flash_attention": choice.flash_attention,
        "cuda_graphs": asked.graphs,
    }


def _bound(passed: Passed) -> dict[str, Any]:
    return {
        "bound": passed.bound,
        "bounds_s": {name: float(passed.bounds_s[name]) for name in BOUNDS},
    }


def prefill_mfu(found: InferenceEstimate) -> float:
    """FLOPs that the prompts need over what the dense peak would do meanwhile."""
    asked = found.asked
    needed = prefill_flops(asked.job, asked.prompt_len) * asked.job.global_batch
    peak = asked.machine.device.peak_flops_per_s(asked.precision.matmul)
    return needed / (found.prefill_s * found.gpus * peak)


def warnings(found: InferenceEstimate) -> list[str]:
    """What a reader should know of the layout, and of the links behind its price."""
    asked, said = found.asked, []
    heads = {block.kv_heads for block in asked.job.graph.kinds.values()}
    tp, latent = asked.choice.tp, getattr(asked.job.spec, "mla", None) is not None
    if latent and tp > 1:
        said.append(
            f"every one of the tp {tp} ranks keeps all latents: they have no heads to "
            "be cut by"
        )
    elif heads and max(heads) < tp:
        said.append(
            f"tp {tp} is more than the {max(heads)} key-value heads: each is kept on "
            f"{tp // max(heads)} ranks"
        )
    return [*said, *asked.machine.remarks()]


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
        ("prefill goes to", breakdown_words(_parts(found.prefill))),
        ("decode goes to", breakdown_words(found.decode.breakdown_s(found.step_s))),
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
        f"{first} for {some}, {rate:,.0f} tokens/s, MFU {prefill_mfu(found):.1%}; "
        f"bound by {_BOUNDS[found.prefill.bound]}"
    )


def _decode_words(found: InferenceEstimate) -> str:
    batch = found.asked.job.global_batch
    return (
        f"{format_seconds(found.step_s)} a token at {found.asked.job.seq_len:,} tokens "
        f"of context, {batch / found.step_s:,.0f} tokens/s; bound by "
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
    used = format_bytes(max(one.total for one in found.held))
    room = format_bytes(asked.machine.device.capacity_bytes)
    verdict = "fits in" if found.fits else "DOES NOT FIT in"
    most = found.largest_micro_batch * asked.micro_batches * asked.choice.dp
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


def sweep_table(
    rows: Sequence[tuple[Mapping[str, Any], InferenceEstimate | str]],
) -> Table:
    """One line a combination: first token, step, rates, memory, or why it cannot be."""
    from rich.table import Table

    table = Table(box=None, padding=(0, 1), header_style="bold")
    for name in rows[0][0]:
        table.add_column(name.replace("_", "-"), justify="right")
    named = ("first token", "step", "tokens/s", "tokens/s/GPU", "peak memory", "fits")
    for name in named:
        table.add_column(name, justify="right")
    table.add_column("", overflow="fold")
    for point, found in rows:
        cells = [str(value) for value in point.values()]
        if isinstance(found, str):
            table.add_row(*cells, *[""] * len(named), found)
            continue
        rate = found.asked.job.global_batch / found.step_s
        table.add_row(
            *cells,
            format_seconds(float(found.prefill.latency_s)),
            format_seconds(found.step_s),
            f"{rate:,.0f}",
            f"{rate / found.gpus:,.1f}",
            format_bytes(max(one.total for one in found.held)),
            "yes" if found.fits else "no",
        )
    return table
