"""Encoders of Hugging Face, and what stands beside them: T5, BERT, ViT, CLIP, LLaVA."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from profiles.files import shown
from profiles.models.huggingface.rotary import Config, Read
from profiles.models.spec import (
    BertSpec,
    ClipSpec,
    DecoderSpec,
    EncoderDecoderSpec,
    VisionLanguageSpec,
    VitSpec,
)

SPAN_CORRUPTION: Final = 114  # targets for 512 tokens (Raffel et al., 2020, 3.1.4)
T5_LENGTH: Final = 512
PADDING: Final = 2  # rows that RoBERTa's table of positions has before the first token


def _t5(config: Config, projection: str = "relu") -> Read:
    layers = config.count("num_layers", 6)
    given = config.get("feed_forward_proj", str, projection)
    gated, _, name = given.rpartition("-")
    config.assume(
        f"a decoder of {SPAN_CORRUPTION} tokens for {T5_LENGTH} of the encoder "
        "(decoder_seq_len in a model file)"
    )
    spec = EncoderDecoderSpec(
        encoder_layers=layers,
        decoder_layers=config.count("num_decoder_layers", layers),
        hidden=config.count("d_model", 512),
        heads=config.count("num_heads", 8),
        head_dim=config.count("d_kv", 64),
        ffn_hidden=config.count("d_ff", 2048),
        vocab=config.count("vocab_size", 32128),
        gated_mlp=gated == "gated",
        activation=config.function(name, "feed_forward_proj"),
        tied_embeddings=config.flag("tie_word_embeddings", True),
        relative_buckets=config.count("relative_attention_num_buckets", 32),
        dropout=config.get("dropout_rate", float, 0.1),
        decoder_seq_len=SPAN_CORRUPTION,
    )
    return spec, T5_LENGTH


def _mt5(config: Config) -> Read:
    usual = {"num_heads": 6, "num_layers": 8, "d_ff": 1024, "vocab_size": 250112}
    return _t5(config.defaulting(**usual), "gated-gelu")


def _bert(config: Config) -> Read:
    return _encoder(config, next_sentence=not _only_words(config))


def _only_words(config: Config) -> bool:
    """Whether a BERT is trained without the next sentence."""
    named: list[Any] = config.get("architectures", list, [])
    return bool(named) and not any("ForPreTraining" in str(one) for one in named)


def _roberta(config: Config) -> Read:
    spec, longest = _encoder(config, next_sentence=False)
    return spec, longest - PADDING


def _albert(config: Config) -> Read:
    layers, groups = (
        config.count("num_hidden_layers", 12),
        config.count("num_hidden_groups", 1),
    )
    if config.count("inner_group_num", 1) != 1:
        raise config.unsupported("an inner_group_num other than 1")
    if groups < 1 or layers % groups:
        raise config.unsupported(
            f"num_hidden_groups={groups} that does not divide {layers} layers"
        )
    return _encoder(
        config,
        next_sentence=not _only_words(config),
        embedding_rank=config.count("embedding_size", 128),
        shared_layers=layers // groups,
        hidden=config.count("hidden_size", 4096),
        layers=layers,
        heads=config.count("num_attention_heads", 64),
        ffn_hidden=config.count("intermediate_size", 16384),
        dropout=config.get("hidden_dropout_prob", float, 0.0),
        vocab=config.count("vocab_size", 30000),
    )


def _encoder(config: Config, **differences: Any) -> tuple[BertSpec, int]:
    if config.flag("is_decoder", False) or config.flag("add_cross_attention", False):
        raise config.unsupported("is_decoder or add_cross_attention")
    longest = config.count("max_position_embeddings", 512)
    shape = {
        "layers": config.count("num_hidden_layers", 12),
        "hidden": config.count("hidden_size", 768),
        "heads": config.count("num_attention_heads", 12),
        "ffn_hidden": config.count("intermediate_size", 3072),
        "vocab": config.count("vocab_size", 30522),
        "max_positions": longest,
        "segments": config.count("type_vocab_size", 2),
        "activation": config.activation("hidden_act", "gelu"),
        "dropout": config.get("hidden_dropout_prob", float, 0.1),
    }
    return BertSpec(**{**shape, **differences}), longest


def _vit(config: Config) -> Read:
    labels: Mapping[str, Any] = config.get("id2label", dict, {})
    classes = len(labels) or config.count("num_labels", None)
    if not classes:
        config.assume("1000 classes (id2label or num_labels)")
    if not config.flag("qkv_bias", True):
        raise config.unsupported("qkv_bias false")
    spec = _vision(
        config,
        classes=classes or 1000,
        activation=config.activation("hidden_act", "gelu"),
        dropout=config.get("hidden_dropout_prob", float, 0.0),
    )
    return spec, spec.own_length


def _vision(config: Config, **differences: Any) -> VitSpec:
    shape = {
        "layers": config.count("num_hidden_layers", 12),
        "hidden": config.count("hidden_size", 768),
        "heads": config.count("num_attention_heads", 12),
        "ffn_hidden": config.count("intermediate_size", 3072),
        "image_size": config.side("image_size", 224),
        "patch_size": config.side("patch_size", 16),
        "channels": config.count("num_channels", 3),
    }
    return VitSpec(**{**shape, **differences})


def _quick(config: Config) -> str:
    """CLIP's function, whose quick approximation costs what others do."""
    name = config.get("hidden_act", str, "quick_gelu")
    return "gelu" if name == "quick_gelu" else config.function(name, "hidden_act")


def _clip_vision(config: Config) -> VitSpec:
    return _vision(
        config,
        patch_size=config.side("patch_size", 32),
        activation=_quick(config),
        pre_norm=True,
        patch_bias=False,
    )


def _clip(config: Config) -> Read:
    text, vision = (config.inside(key, {}) for key in ("text_config", "vision_config"))
    positions = text.count("max_position_embeddings", 77)
    spec = ClipSpec(
        layers=text.count("num_hidden_layers", 12),
        hidden=text.count("hidden_size", 512),
        heads=text.count("num_attention_heads", 8),
        ffn_hidden=text.count("intermediate_size", 2048),
        vocab=text.count("vocab_size", 49408),
        positions=positions,
        activation=_quick(text),
        projection=config.count("projection_dim", 512),
        vision=_clip_vision(vision),
    )
    return spec, positions


def llava(config: Config, text: Callable[[Config], Read]) -> Read:
    """A tower of CLIP before the decoder that *text* reads."""
    vision = config.inside("vision_config")
    kind = vision.get("model_type", str, "clip_vision_model")
    if kind != "clip_vision_model":
        raise vision.unsupported(f"model_type {shown(kind)}", "clip_vision_model is")
    if not config.flag("multimodal_projector_bias", True):
        raise config.unsupported("multimodal_projector_bias false")
    decoder, longest = text(config.inside("text_config"))
    if not isinstance(decoder, DecoderSpec):
        raise config.unsupported("a text_config that is no decoder")
    config.assume(
        "one image a sequence, its patches among the tokens; all weights trained, the "
        "tower's too"
    )
    return VisionLanguageSpec(vision=_clip_vision(vision), text=decoder), longest


ENCODERS: Final[dict[str, Callable[[Config], Read]]] = {
    "t5": _t5,
    "mt5": _mt5,
    "bert": _bert,
    "roberta": _roberta,
    "xlm-roberta": _roberta,
    "albert": _albert,
    "vit": _vit,
    "clip": _clip,
}
