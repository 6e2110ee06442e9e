"""Inference at each combination of the values of some options."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import fields, replace
from typing import Any, Final, TypeVar

from costmodel.inference.estimate import InferenceEstimate, estimate
from costmodel.inference.options import InferenceOptions
from costmodel.inference.question import resolve
from costmodel.pins import Pins
from costmodel.whatif import points
from profiles.cluster import Cluster
from profiles.errors import Contradiction, InvalidSpec
from profiles.job_options import JobOptions
from profiles.models.catalog import Model

AXES: Final = (
    *("gpus", "seq-len", "prompt-len", "new-tokens", "global-batch"),
    *("tp", "pp", "dp", "ep", "micro-batch", "micro-batches"),
    *("precision", "kv-cache-dtype", "quantization", "group-size"),
)
_T = TypeVar("_T", JobOptions, Pins, InferenceOptions)


def sweep(
    model: Model,
    cluster: Cluster,
    job: JobOptions,
    pins: Pins,
    options: InferenceOptions,
    axes: Sequence[str],
) -> Iterator[tuple[dict[str, Any], InferenceEstimate | str]]:
    """Each combination of the axes' values, with its estimate or why it cannot be.

    Raises InvalidSpec and UnknownName for what is no axis, or too many combinations.
    """
    for point in points(axes, AXES):
        asked = _at(job, point), _at(pins, point), _at(options, point)
        try:
            yield point, estimate(resolve(model, cluster, *asked))
        except (Contradiction, InvalidSpec) as error:
            yield point, str(error)


def _at(options: _T, point: dict[str, Any]) -> _T:
    """*options* with those of their fields that a point of the sweep gives."""
    names = {field.name for field in fields(options)}
    return replace(options, **{key: point[key] for key in names & point.keys()})
