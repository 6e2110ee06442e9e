"""Questions about inference, as tests ask them."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from costmodel.inference.estimate import InferenceEstimate, inference_estimate
from costmodel.inference.question import Question, resolve
from costmodel.options.inference import InferenceOptions
from costmodel.options.pins import Pins
from profiles.commandline.options import JobOptions
from profiles.hardware.catalog import cluster
from profiles.models.catalog import model


def asked(name: str, where: str = "dgx-a100-80gb", **options: Any) -> Question:
    """The question that the command's options of these names ask."""

    def mine(kind: type) -> dict[str, Any]:
        names = {field.name for field in fields(kind)} & options.keys()
        return {key: options[key] for key in names}

    return resolve(
        model(name),
        cluster(where),
        JobOptions(model=name, cluster=where, **mine(JobOptions)),
        Pins(**mine(Pins)),
        InferenceOptions(inference=True, **mine(InferenceOptions)),
    )


def served(
    name: str, where: str = "dgx-a100-80gb", **options: Any
) -> InferenceEstimate:
    """Its price."""
    return inference_estimate(asked(name, where, **options))
