"""Configs of Hugging Face: every family has the parameters of its class, exactly."""

from __future__ import annotations

from typing import Any

import pytest

from costmodel.simulation.flops import block_flops
from profiles.errors import InvalidFile, InvalidSpec, Unsupported
from profiles.models.configs import parse_config
from profiles.models.job import Model, parse_model
from profiles.models.param_count import graph_parameters, parameters
from profiles.models.spec import DecoderSpec, spec_document
from tests.support.family_configs import KNOWN, Known

# Of config.json files on the hub: keys that differ from those of a class's defaults.
PUBLISHED: dict[str, tuple[dict[str, Any], float]] = {
    "gemma-7b": (
        {
            "model_type": "gemma",
            "hidden_size": 3072,
            "intermediate_size": 24576,
            "num_hidden_layers": 28,
            "num_attention_heads": 16,
            "num_key_value_heads": 16,
            "head_dim": 256,
            "vocab_size": 256000,
            "max_position_embeddings": 8192,
        },
        8.54e9,
    ),
    "gpt-neox-20b": (
        {
            "model_type": "gpt_neox",
            "hidden_size": 6144,
            "intermediate_size": 24576,
            "num_hidden_layers": 44,
            "num_attention_heads": 64,
            "vocab_size": 50432,
            "rotary_pct": 0.25,
        },
        20.55e9,
    ),
    "opt-6.7b": (
        {
            "model_type": "opt",
            "hidden_size": 4096,
            "ffn_dim": 16384,
            "num_hidden_layers": 32,
            "num_attention_heads": 32,
            "vocab_size": 50272,
            "word_embed_proj_dim": 4096,
        },
        6.66e9,
    ),
    "falcon-40b": (
        {
            "model_type": "falcon",
            "hidden_size": 8192,
            "num_hidden_layers": 60,
            "num_attention_heads": 128,
            "num_kv_heads": 8,
            "new_decoder_architecture": True,
            "vocab_size": 65024,
        },
        41.3e9,
    ),
    "bloom": (
        {
            "model_type": "bloom",
            "n_embed": 14336,
            "n_layer": 70,
            "num_attention_heads": 112,
            "vocab_size": 250880,
        },
        176.2e9,
    ),
    "mamba-2.8b": (
        {
            "model_type": "mamba",
            "hidden_size": 2560,
            "num_hidden_layers": 64,
            "vocab_size": 50280,
        },
        2.77e9,
    ),
}


def read(document: dict[str, Any]) -> Model:
    return parse_config(document, what="config", name="one")


@pytest.mark.parametrize("known", KNOWN, ids=lambda one: one.class_name)
def test_parameters_are_those_of_the_class(known: Known) -> None:
    found = read(known.document)
    assert parameters(found.spec).total == known.parameters
    graph = found.job(global_batch=4).graph
    assert graph_parameters(graph).total == known.parameters


@pytest.mark.parametrize("known", KNOWN, ids=lambda one: one.class_name)
def test_the_class_itself_has_as_many(known: Known) -> None:
    transformers = pytest.importorskip("transformers")
    torch = pytest.importorskip("torch")
    document = {**known.keys}
    made = transformers.AutoConfig.for_model(known.model_type, **document)
    with torch.device("meta"):
        module = getattr(transformers, known.class_name)(made)
    module.tie_weights()
    assert sum(one.numel() for one in module.parameters()) == known.parameters


@pytest.mark.parametrize("name", PUBLISHED)
def test_models_that_were_published_have_their_size(name: str) -> None:
    document, size = PUBLISHED[name]
    assert parameters(read(document).spec).total == pytest.approx(size, rel=0.005)


def test_unusual_decoders_are_written_and_read_back() -> None:
    for known in KNOWN:
        spec = read(known.document).spec
        assert parse_model(spec_document(spec), what="file").spec == spec


UNKNOWN: dict[str, Any] = {
    "model_type": "novel",
    "hidden_size": 256,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "intermediate_size": 512,
    "vocab_size": 1000,
    "rms_norm_eps": 1e-6,
}


def test_an_unknown_decoder_is_read_as_its_keys_suggest() -> None:
    found = read(UNKNOWN)
    like = {**UNKNOWN, "model_type": "llama", "max_position_embeddings": 2048}
    assert found.spec == read(like).spec
    (said,) = found.assumed
    assert "model_type novel is not known" in said
    assert "RMSNorm, a gated MLP and no biases" in said
    assert "rotary positions" in said


def test_an_unknown_decoder_with_layer_norms_is_a_gpt() -> None:
    document = {key: value for key, value in UNKNOWN.items() if key != "rms_norm_eps"}
    spec = read({**document, "hidden_act": "gelu"}).spec
    assert isinstance(spec, DecoderSpec)
    assert (spec.norm, spec.gated_mlp, spec.position) == ("layernorm", False, "learned")
    turned = read({**document, "rope_theta": 1e4, "hidden_act": "gelu"}).spec
    assert isinstance(turned, DecoderSpec)
    assert turned.position == "rotary"


def test_an_unknown_mixture_has_its_experts() -> None:
    mixed = {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 64}
    found = read({**UNKNOWN, **mixed})
    assert isinstance(found.spec, DecoderSpec)
    assert found.spec.moe is not None
    assert (found.spec.moe.experts, found.spec.moe.expert_ffn_hidden) == (8, 64)
    assert "experts in every layer (num_experts" in found.assumed[0]


@pytest.mark.parametrize(
    ("document", "error", "message"),
    [
        ({"model_type": "novel"}, Unsupported, "others that have hidden_size, num_"),
        ({**UNKNOWN, "kv_lora_rank": 64}, Unsupported, "model_type novel"),
        ({**UNKNOWN, "is_encoder_decoder": True}, Unsupported, "model_type novel"),
        ({**UNKNOWN, "num_attention_heads": 7}, InvalidSpec, "does not divide"),
        (
            {**KNOWN[5].document, "do_layer_norm_before": False},
            Unsupported,
            "do_layer_norm_before false",
        ),
        (
            {**KNOWN[13].document, "use_bias": True},
            Unsupported,
            "use_bias",
        ),
        (
            {"model_type": "vit", "image_size": [224, 112]},
            Unsupported,
            "no square",
        ),
        ({"model_type": "albert", "num_hidden_groups": 5}, Unsupported, "groups=5"),
        ({"model_type": "t5", "feed_forward_proj": "mish"}, Unsupported, "mish"),
        (
            {"model_type": "llava", "vision_config": {}},
            InvalidFile,
            "lacks text_config",
        ),
        (
            {
                "model_type": "llava",
                "vision_config": {"model_type": "siglip_vision_model"},
                "text_config": {},
            },
            Unsupported,
            "siglip_vision_model",
        ),
    ],
)
def test_what_cannot_be_read_is_refused(
    document: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        read(document)


_WIDE: dict[str, Any] = {
    "hidden_size": 256,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "intermediate_size": 1024,
}
_WORDS: dict[str, Any] = {"vocab_size": 1000, "max_position_embeddings": 512}
_TOWER = {**_WIDE, "patch_size": 16}
# Forward FLOPs of two sequences of so many tokens: torch's `FlopCounterMode` over the
# class of transformers 5.24 with eager attention.
FLOPS: dict[str, tuple[dict[str, Any], int | None, int]] = {
    "bert": ({"model_type": "bert", **_WIDE, **_WORDS}, 512, 7_101_220_864),
    "albert": ({"model_type": "albert", **_WIDE, **_WORDS}, 512, 6_839_076_864),
    "vit": ({"model_type": "vit", **_WIDE, "num_labels": 10}, None, 2_251_718_656),
    "t5": (
        {
            "model_type": "t5",
            "vocab_size": 1000,
            "d_model": 256,
            "d_kv": 64,
            "d_ff": 1024,
            "num_layers": 3,
            "num_heads": 4,
        },
        512,
        9_058_099_200,
    ),
    "clip": (
        {
            "model_type": "clip",
            "projection_dim": 64,
            "text_config": {**_WIDE, "vocab_size": 1000},
            "vision_config": _TOWER,
        },
        None,
        3_014_930_944,
    ),
    "llava": (
        {
            "model_type": "llava",
            "vision_config": {
                **_TOWER,
                "model_type": "clip_vision_model",
                "image_size": 224,
            },
            "text_config": {
                **_WIDE,
                "model_type": "llama",
                "vocab_size": 1200,
                "max_position_embeddings": 2048,
            },
        },
        512,
        11_036_678_144,
    ),
    "gemma3": (
        {
            "model_type": "gemma3_text",
            **_WIDE,
            **_WORDS,
            "num_key_value_heads": 2,
            "head_dim": 48,
        },
        256,
        3_433_037_824,
    ),
    "gpt_neox": ({"model_type": "gpt_neox", **_WIDE, **_WORDS}, 256, 3_080_716_288),
    "falcon": ({"model_type": "falcon", **_WIDE, **_WORDS}, 256, 2_778_726_400),
    "olmo2": ({"model_type": "olmo2", **_WIDE, **_WORDS}, 256, 3_886_022_656),
}


@pytest.mark.parametrize("name", FLOPS)
def test_forward_flops_are_those_that_torch_counts(name: str) -> None:
    """CLIP compares the features of a batch too, which is left out."""
    document, seq_len, counted = FLOPS[name]
    job = read(document).job(seq_len=seq_len, global_batch=2)
    found = sum(count * block_flops(block, job) for block, count in job.graph.blocks)
    assert found == pytest.approx(counted, rel=1e-6)
