"""`plan --inference`: the question of a command line, answered and shown."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from costmodel.inference import inference_view, layout_words
from costmodel.options import InferenceOptions, Pins
from planner.inference.options import LatencyOptions
from planner.inference.search import Asked, Found, Served, search
from profiles import load_model
from profiles.commandline import JobOptions, console, emit_json, hint, premise, warn
from profiles.errors import Infeasible, InvalidQuestion
from profiles.hardware import DEFAULT_CLUSTER, cluster
from profiles.units import format_bytes, format_seconds

DOLLARS: Final = "dollars_per_million_tokens"
GPU_SECONDS: Final = "gpu_seconds_per_token"


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """How an answer is shown: with so many runners-up, as JSON, with all details."""

    top: int
    as_json: bool
    details: bool


def answer(
    job: JobOptions,
    pins: Pins,
    options: InferenceOptions,
    latency: LatencyOptions,
    sizes: Sequence[int],
    *,
    shown: Shown,
) -> None:
    """Print the cheapest way to serve, and the best runners-up."""
    job.require("model")
    options.require_no_what_if()
    if not sizes and job.gpus is None:
        raise InvalidQuestion(
            "--gpus is missing; say on how many a model may be served, such as --gpus "
            "8, or --gpus 1..16 for the cheapest number"
        )
    asked = Asked(
        model=load_model(job.model or "", seq_len=job.seq_len),
        cluster=cluster(job.cluster or DEFAULT_CLUSTER),
        job=job,
        pins=pins,
        options=options,
        latency=latency,
    )
    counts = list(sizes) or [job.gpus or 1]
    premise({"gpus": counts, "cluster": asked.cluster.name, **_nothing()})
    found = search(asked, counts)
    if not found.ways:
        raise _infeasible(asked, found)
    if shown.as_json:
        emit_json(_document(found, shown.top))
        return
    _show(found, shown)


def _nothing() -> dict[str, Any]:
    return {"layout": None, "estimate": None, "bound": None, "alternatives": []}


def _infeasible(asked: Asked, found: Found) -> Infeasible:
    tally, latency = found.tally, asked.latency
    if tally.too_large == tally.considered:
        least = format_bytes(tally.least_bytes)
        room = format_bytes(asked.cluster.device.capacity_bytes)
        return Infeasible(
            f"{asked.model.name} does not fit on these GPUs: a GPU needs {least} at "
            f"least, and has {room}",
            constraint="memory",
            nearest="more --gpus, a shorter --seq-len or --kv-cache-dtype fp8",
        )
    limits = {
        "--max-first-token-s": (latency.max_first_token_s, tally.nearest_first_s),
        "--max-token-s": (latency.max_token_s, tally.nearest_token_s),
    }
    said = [
        f"{flag} {limit:g}: the soonest is {format_seconds(soonest)}"
        for flag, (limit, soonest) in limits.items()
        if limit is not None
    ]
    return Infeasible(
        f"none of {tally.too_slow:,} ways to serve {asked.model.name} is soon enough; "
        f"{'; '.join(said)}",
        constraint="latency",
        nearest=f"first token {tally.nearest_first_s:.4g} s, token "
        f"{tally.nearest_token_s:.4g} s, each by a way of its own",
    )


def _quantity(way: Served) -> str:
    priced = way.estimate.asked.machine.island.device_dollars_per_h is not None
    return DOLLARS if priced else GPU_SECONDS


def _document(found: Found, top: int) -> dict[str, Any]:
    best, tally = found.ways[0], found.tally
    return {
        "gpus": best.estimate.gpus,
        "layout": best.estimate.asked.document(),
        "estimate": best.estimate.document(),
        "bound": {
            "objective": _quantity(best),
            "value": best.value,
            "lower": best.value,
            "gap": 0.0,
            "space": "tp, pp, ep, formats of weights, and listed batches",
            "complete": True,
        },
        "search": {
            "name": "bounded exhaustive",
            "layouts_considered": tally.considered,
            "layouts_too_large": tally.too_large,
            "layouts_too_slow": tally.too_slow,
            "layouts_bounded": tally.bounded,
            "layouts_priced": tally.priced,
            "seconds": found.seconds,
        },
        "by_weights": {
            name: {"layout": way.estimate.asked.document(), _quantity(way): way.value}
            for name, way in found.best_by_weights.items()
        },
        "alternatives": [
            {
                "layout": way.estimate.asked.document(),
                _quantity(way): way.value,
                "first_token_s": float(way.estimate.prefill.latency_s),
                "token_s": way.estimate.step_s,
            }
            for way in found.ways[1 : top + 1]
        ],
        "infeasible": None,
    }


def _show(found: Found, shown: Shown) -> None:
    best, tally, screen = found.ways[0], found.tally, console()
    for line in best.estimate.warnings:
        warn(line)
    proof = (
        f"{tally.considered:,} layouts and batches: {tally.too_large:,} do not fit, "
        f"{tally.too_slow:,} are too slow, {tally.bounded:,} cost more by their bound, "
        f"{tally.priced:,} are priced"
    )
    rows = [("proof", proof)] if shown.details else []
    rows += [
        (f"best with {name}", f"{_cost(way)}: {_words(way)}")
        for name, way in found.best_by_weights.items()
    ]
    more = (
        f" for {_cost(best)} new tokens; of {tally.considered:,} layouts and batches "
        "none that serves is cheaper"
    )
    screen.print(inference_view(best.estimate, rows, more=more, details=shown.details))
    if best.estimate.asked.stored.quantization:
        warn(
            f"weights in {best.weights} change the model's answers: check them, or fix "
            "a format with --precision or --quantization"
        )
    others = found.ways[1 : shown.top + 1] if shown.details else []
    if others:
        from costmodel.report import pairs_table

        screen.print()
        screen.print(pairs_table([(_cost(way), _words(way)) for way in others]))
    if not shown.details:
        screen.print(hint("the proof, runners-up, breakdowns and all assumed values"))


def _cost(way: Served) -> str:
    if _quantity(way) == DOLLARS:
        return f"{way.value:.3g} USD a million"
    return f"{way.value:.3g} GPU-seconds a token"


def _words(way: Served) -> str:
    found = way.estimate
    return (
        f"{layout_words(found)} on {found.gpus} GPUs, first token "
        f"{format_seconds(float(found.prefill.latency_s))}, then "
        f"{format_seconds(found.step_s)} a token"
    )
