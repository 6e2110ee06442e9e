"""The graph of each family, by its spec."""

from __future__ import annotations

from profiles.models.decoder import decoder_graph
from profiles.models.families.bert import bert_graph
from profiles.models.families.clip import clip_graph
from profiles.models.families.encoder_decoder import encoder_decoder_graph
from profiles.models.families.resnet import resnet_graph
from profiles.models.families.traced import traced_graph
from profiles.models.families.unet import unet_graph
from profiles.models.families.vision_language import vision_language_graph
from profiles.models.families.vit import vit_graph
from profiles.models.graph import ModelGraph
from profiles.models.spec import (
    BertSpec,
    ClipSpec,
    DecoderSpec,
    EncoderDecoderSpec,
    ModelSpec,
    ModuleSpec,
    ResnetSpec,
    UnetSpec,
    VisionLanguageSpec,
    VitSpec,
)


def model_graph(spec: ModelSpec, name: str, seq_len: int) -> ModelGraph:
    """The operator graph of a model of any family, at sequences of *seq_len* tokens.

    Raises Unsupported for what is described but not priced yet.
    """
    match spec:
        case DecoderSpec():
            return decoder_graph(spec, name)
        case EncoderDecoderSpec():
            return encoder_decoder_graph(spec, name, seq_len)
        case BertSpec():
            return bert_graph(spec, name, seq_len)
        case VitSpec():
            return vit_graph(spec, name)
        case ResnetSpec():
            return resnet_graph(spec, name)
        case UnetSpec():
            return unet_graph(spec, name)
        case ClipSpec():
            return clip_graph(spec, name)
        case ModuleSpec():
            return traced_graph(spec)
        case VisionLanguageSpec():
            return vision_language_graph(spec, name, seq_len)
