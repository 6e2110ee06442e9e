"""`simulate --inference`: the question of a command line, answered and shown."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from costmodel.inference.estimate import InferenceEstimate, estimate, sweep
from costmodel.inference.question import resolve
from costmodel.inference.report import document, warnings
from costmodel.options import InferenceOptions, Pins
from profiles.commandline import JobOptions, console, emit_json, warn
from profiles.hardware import DEFAULT_CLUSTER, cluster
from profiles.models import model


def answer(
    job: JobOptions,
    pins: Pins,
    options: InferenceOptions,
    axes: Sequence[str],
    *,
    as_json: bool,
) -> None:
    """Print the estimate, or those along *axes*, as a table or one JSON document."""
    job.require("model")
    named = model(job.model or "")
    where = cluster(job.cluster or DEFAULT_CLUSTER)
    if axes:
        _show_sweep(
            list(sweep(named, where, job, pins, options, axes)), as_json=as_json
        )
        return
    found = estimate(resolve(named, where, job, pins, options))
    if as_json:
        emit_json(document(found))
        return
    from costmodel.inference.report import inference_view

    for line in warnings(found):
        warn(line)
    console().print(inference_view(found))


def _show_sweep(
    rows: Sequence[tuple[dict[str, Any], InferenceEstimate | str]], *, as_json: bool
) -> None:
    if as_json:
        points = [
            {"point": point, "estimate": None, "error": found}
            if isinstance(found, str)
            else {"point": point, "estimate": document(found), "error": None}
            for point, found in rows
        ]
        emit_json({"sweep": points})
        return
    from costmodel.inference.report import sweep_table
    from costmodel.report import point_words

    for point, found in rows:
        for line in () if isinstance(found, str) else warnings(found):
            warn(f"{point_words(point)}: {line}")
    console().print(sweep_table(rows))
