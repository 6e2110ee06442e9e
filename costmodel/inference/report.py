"""`simulate --inference`: the question of a command line, answered and shown."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from costmodel.inference.estimate import (
    InferenceEstimate,
    Passed,
    inference_estimate,
    token_bytes,
)
from costmodel.inference.pools import Pools, pools
from costmodel.inference.question import resolve
from costmodel.inference.speculation import Speculation, speculation
from costmodel.options import (
    InferenceOptions,
    Pins,
    SweepOptions,
    inference_options,
)
from costmodel.report import (
    assumed_words,
    breakdown_words,
    bytes_table,
    pairs_table,
)
from costmodel.sweep import (
    CLUSTER_AXES,
    OF_TRAINING,
    changed,
    csv_text,
    show_sweep,
    sweep,
)
from profiles import load_model
from profiles.commandline import JobOptions, console, emit_json, hint, warn
from profiles.errors import Contradiction, InvalidSpec
from profiles.files import write_text
from profiles.hardware import DEFAULT_CLUSTER, Cluster, cluster
from profiles.models import Model
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


def inference_view(
    found: InferenceEstimate,
    supposed: Sequence[tuple[str, str]] = (),
    *,
    more: str = "",
    details: bool = False,
) -> Group:
    """What `simulate --inference` shows: a sentence that ends with *more*, what is
    *supposed* beside it and, with *details*, the rest."""
    from rich.console import Group
    from rich.text import Text

    asked = found.asked
    rows = [
        ("layout", layout_words(found)),
        ("prefill", _prefill_words(found)),
        ("decode", _decode_words(found)),
        *([("", _least_words(found))] if details else []),
        ("answers", _answers_words(found)),
        ("peak memory", _memory_words(found)),
        *(_detail_rows(found) if details else ()),
        *supposed,
    ]
    if asked.assumed:
        rows.append(("assumed", assumed_words(asked.assumed, details=details)))
    held = [one.document() for one in found.held]
    return Group(
        Text(_sentence(found) + more + ".", style="bold"),
        pairs_table(rows),
        Text(),
        bytes_table(held, _COLUMNS, 8 if details else 3, gaps=details),
    )


def _sentence(found: InferenceEstimate) -> str:
    """The answer, in one."""
    asked, batch = found.asked, found.asked.job.global_batch
    several = "" if batch == 1 else "s"
    return (
        f"{asked.job.model} on {found.gpus:,} × {asked.machine.device.name} serves "
        f"{batch:,} sequence{several} of {asked.prompt_len:,} + {asked.new_tokens:,} "
        f"tokens at {batch / found.step_s:,.0f} tokens/s"
    )


def _detail_rows(found: InferenceEstimate) -> Iterator[tuple[str, str]]:
    cached = f"{token_bytes(found.asked):,.0f} bytes a token"
    decode = found.decode.breakdown_s(found.step_s)
    yield "KV cache", f"{cached} ({found.asked.cache.value})"
    yield "prefill breakdown", breakdown_words(_parts(found.prefill))
    yield "decode breakdown", breakdown_words(decode)


def _parts(passed: Passed) -> dict[str, float]:
    return passed.breakdown_s(float(passed.latency_s))


def layout_words(found: InferenceEstimate) -> str:
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
    together = found.prompts_together
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
    *(name.replace("_", "-") for name in CLUSTER_AXES),
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
SWEEP_CELLS: Final[Mapping[str, Callable[[InferenceEstimate], Any]]] = {
    "first_token_s": lambda found: float(found.prefill.latency_s),
    "step_s": lambda found: found.step_s,
    "tokens_per_s": lambda found: found.asked.job.global_batch / found.step_s,
    "peak_memory_bytes": lambda found: found.peak_memory_bytes,
    "fits": lambda found: found.fits,
}


def answer(
    job: JobOptions,
    pins: Pins,
    options: InferenceOptions,
    what_if: SweepOptions,
    *,
    as_json: bool,
    details: bool = False,
) -> None:
    """Print the estimate of the command line's question, or those along *axes*, as a
    table or one JSON document."""
    job.require("model")
    what_if.require_sweep()
    named = load_model(job.model or "", seq_len=job.seq_len)
    where = cluster(job.cluster or DEFAULT_CLUSTER)
    price = partial(_priced, named, where)
    if what_if.sweep:
        options.require_no_what_if()
        if what_if.plot is not None:
            raise Contradiction("--plot is of training; write --csv, or leave it out")
        rows = list(
            sweep(
                what_if.sweep,
                (job, pins, options),
                price,
                known=AXES,
                groups={**OF_TRAINING, InferenceOptions: inference_options},
                refused=(Contradiction, InvalidSpec),
            )
        )
        if what_if.csv is not None:
            write_text(what_if.csv, csv_text(rows, SWEEP_CELLS))
        show_sweep(rows, SWEEP_COLUMNS, as_json=as_json)
        return
    found = price({}, job, pins, options)
    supposed = _supposed(found, options)
    if as_json:
        members = {name: one.document() for name, one in supposed.items()}
        emit_json(found.document() | members)
        return
    for line in found.warnings:
        warn(line)
    said = [_WORDS[name](one) for name, one in supposed.items()]
    screen = console()
    screen.print(inference_view(found, said, details=details))
    if not details:
        screen.print(hint("breakdowns, the KV cache and all assumed values"))


def _supposed(found: InferenceEstimate, options: InferenceOptions) -> dict[str, Any]:
    """The what-ifs that were asked for, by their names in the document."""
    supposed: dict[str, Any] = {}
    if options.draft_model is not None:
        draft = partial(load_model, options.draft_model)
        supposed["speculation"] = speculation(
            found, options, draft, found.asked.assumed
        )
    if options.prefill_gpus is not None:
        supposed["pools"] = pools(found, options.prefill_gpus)
    return supposed


def _speculation_words(found: Speculation) -> tuple[str, str]:
    verdict = "" if found.fits else "; DOES NOT FIT with the draft"
    words = (
        f"{found.draft.job.model} proposes {found.tokens} tokens, "
        f"{found.tokens_per_round:.2f} come of a round of "
        f"{format_seconds(float(found.round_s(found.plain.asked.job.seq_len)))}: "
        f"{format_seconds(found.token_s)} a token, "
        f"{found.plain.step_s / found.token_s:.2f} × as fast{verdict}"
    )
    return "speculation", words


def _pools_words(found: Pools) -> tuple[str, str]:
    gain = found.requests_per_s / found.together_per_s
    words = (
        f"{found.prefill_gpus} GPUs read {found.prefill_per_s:.3g} prompts/s, "
        f"{found.plain.gpus - found.prefill_gpus} decode {found.decode_per_s:.3g} "
        f"answers/s: {gain:.2f} × the {found.together_per_s:.3g} requests/s of all "
        f"doing both; {format_bytes(found.moved_bytes)} a prompt move in "
        f"{format_seconds(found.moved_s)}; balanced at {found.balanced_gpus} GPUs"
    )
    return "prefill apart", words


_WORDS: Final[Mapping[str, Callable[[Any], tuple[str, str]]]] = {
    "speculation": _speculation_words,
    "pools": _pools_words,
}


def _priced(
    model: Model, cluster: Cluster, point: Mapping[str, Any], *asked: Any
) -> InferenceEstimate:
    return inference_estimate(resolve(model, changed(cluster, point), *asked))
