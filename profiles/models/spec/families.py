"""`ModelSpec`: any of the families, and the name of each in a file."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from profiles.models.spec.decoder import PLAIN, DecoderSpec
from profiles.models.spec.encoders import BertSpec, EncoderDecoderSpec
from profiles.models.spec.module import ModuleSpec
from profiles.models.spec.towers import ClipSpec, VisionLanguageSpec
from profiles.models.spec.vision import ResnetSpec, UnetSpec, VitSpec

ModelSpec = (
    DecoderSpec
    | EncoderDecoderSpec
    | BertSpec
    | VitSpec
    | UnetSpec
    | ResnetSpec
    | ClipSpec
    | VisionLanguageSpec
    | ModuleSpec
)
FAMILIES: dict[str, type[ModelSpec]] = {
    "decoder": DecoderSpec,
    "encoder-decoder": EncoderDecoderSpec,
    "bert": BertSpec,
    "vit": VitSpec,
    "unet": UnetSpec,
    "resnet": ResnetSpec,
    "clip": ClipSpec,
    "vision-language": VisionLanguageSpec,
}


def spec_document(spec: ModelSpec) -> dict[str, Any]:
    """*spec* as JSON values, which `parse_model` reads back.

    What came to decoders after the first files were written is left out where it has
    its default, so that files and checkpoints of before are those of now.
    """
    if isinstance(spec, ModuleSpec):
        return {"module": spec.module}
    document = asdict(spec)
    if isinstance(spec, DecoderSpec):
        document["numerics"] = spec.numerics.document
        _leave_out(document, norm_bias=True, numerics={}, arrangement=asdict(PLAIN))
        _leave_out(document, pattern="", attention_gate=False, recurrence=None)
        if spec.moe is not None:
            _leave_out(document["moe"], shared_gate=False, latent=0)
    return document


def _leave_out(document: dict[str, Any], **usual: object) -> None:
    for name, value in usual.items():
        if document[name] == value:
            del document[name]
