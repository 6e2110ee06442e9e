"""`simulate --inference`: the question of a command line, answered and shown."""

from __future__ import annotations

from costmodel.inference.document import document, warnings
from costmodel.inference.estimate import estimate
from costmodel.inference.options import InferenceOptions
from costmodel.inference.question import resolve
from costmodel.pins import Pins
from profiles.catalog import DEFAULT_CLUSTER, cluster
from profiles.command import warn
from profiles.job_options import JobOptions
from profiles.models.catalog import model
from profiles.terminal import console, emit_json


def answer(
    job: JobOptions, pins: Pins, options: InferenceOptions, *, as_json: bool
) -> None:
    """Print the estimate as a table, or as one JSON document."""
    job.require("model")
    where = cluster(job.cluster or DEFAULT_CLUSTER)
    found = estimate(resolve(model(job.model or ""), where, job, pins, options))
    if as_json:
        emit_json(document(found))
        return
    from costmodel.inference.view import inference_view

    for line in warnings(found):
        warn(line)
    console().print(inference_view(found))
