"""Configurations of hybrid models: read as the catalogue has them, or refused."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from profiles.errors import InvalidSpec, MeshwrightError, Unsupported
from profiles.models.catalog import model
from profiles.models.configs import parse_config
from profiles.models.job import parse_model
from profiles.models.param_count import parameters
from profiles.models.spec import DecoderSpec, spec_document

NEMOTRON_H: dict[str, Any] = {
    "model_type": "nemotron_h",
    "hidden_size": 4096,
    "num_hidden_layers": 52,
    "hybrid_override_pattern": "M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M-",
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "attention_head_dim": 128,
    "intermediate_size": 21504,
    "mlp_hidden_act": "relu2",
    "ssm_state_size": 128,
    "mamba_num_heads": 128,
    "mamba_head_dim": 64,
    "n_groups": 8,
    "conv_kernel": 4,
    "expand": 2,
    "chunk_size": 128,
    "vocab_size": 131072,
    "max_position_embeddings": 8192,
}
SUPER = {
    **NEMOTRON_H,
    "num_hidden_layers": 88,
    "hybrid_override_pattern": "MEMEMEM*EMEMEMEM*EMEMEMEM*EMEMEMEMEM*EMEMEMEMEM*"
    "EMEMEMEMEM*EMEMEMEMEM*EMEMEMEM*EMEMEMEME",
    "num_key_value_heads": 2,
    "intermediate_size": 2688,
    "n_routed_experts": 512,
    "num_experts_per_tok": 22,
    "moe_intermediate_size": 2688,
    "moe_shared_expert_intermediate_size": 5376,
    "moe_latent_size": 1024,
    "num_nextn_predict_layers": 1,
}
QWEN3_NEXT = {
    "model_type": "qwen3_next",
    "hidden_size": 2048,
    "num_hidden_layers": 48,
    "num_attention_heads": 16,
    "num_key_value_heads": 2,
    "head_dim": 256,
    "intermediate_size": 5120,
    "vocab_size": 151936,
    "max_position_embeddings": 262144,
    "partial_rotary_factor": 0.25,
    "full_attention_interval": 4,
    "linear_conv_kernel_dim": 4,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "linear_num_key_heads": 16,
    "linear_num_value_heads": 32,
    "num_experts": 512,
    "num_experts_per_tok": 10,
    "moe_intermediate_size": 512,
    "shared_expert_intermediate_size": 512,
}
JAMBA = {
    "model_type": "jamba",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "attn_layer_offset": 4,
    "attn_layer_period": 8,
    "expert_layer_offset": 1,
    "expert_layer_period": 2,
    "mamba_d_conv": 4,
    "mamba_d_state": 16,
    "mamba_dt_rank": 256,
    "mamba_expand": 2,
    "num_experts": 16,
    "num_experts_per_tok": 2,
    "vocab_size": 65536,
    "max_position_embeddings": 262144,
}
MINIMAX = {
    "model_type": "minimax_text_01",
    "hidden_size": 6144,
    "intermediate_size": 9216,
    "num_hidden_layers": 80,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "vocab_size": 200064,
    "max_position_embeddings": 10240000,
    "attn_type_list": [0, 0, 0, 0, 0, 0, 0, 1] * 10,
    "rotary_dim": 64,
    "num_local_experts": 32,
    "num_experts_per_tok": 2,
}


def spec_of(document: dict[str, Any]) -> DecoderSpec:
    found = parse_config(document, what="config", name="one").spec
    assert isinstance(found, DecoderSpec)
    return found


def as_in_catalogue(name: str) -> DecoderSpec:
    found = model(name).spec
    assert isinstance(found, DecoderSpec)
    return found


@pytest.mark.parametrize(
    ("document", "name"),
    [
        (NEMOTRON_H, "nemotron-h-8b"),
        (SUPER, "nemotron-3-super"),
        (JAMBA, "jamba-v0.1"),
        (MINIMAX, "minimax-text-01"),
        ({**QWEN3_NEXT, "mtp_num_hidden_layers": 1}, "qwen3-next-80b-a3b"),
    ],
)
def test_a_config_is_what_the_catalogue_has(
    document: dict[str, Any], name: str
) -> None:
    """But for numerics, and for a pattern that the catalogue writes once."""
    known, found = as_in_catalogue(name), spec_of(document)
    for layer in range(known.layers):
        kinds = [(one.mixer(layer), one.mlp(layer)) for one in (known, found)]
        assert kinds[0] == kinds[1]
    assert replace(found, pattern=known.pattern, numerics=known.numerics) == known
    assert parameters(found) == parameters(known)


def test_the_same_layers_in_other_words() -> None:
    names = {"M": "mamba", "*": "attention", "-": "mlp"}
    words = [names[one] for one in NEMOTRON_H["hybrid_override_pattern"]]
    other = {k: v for k, v in NEMOTRON_H.items() if k != "hybrid_override_pattern"}
    assert spec_of({**other, "layers_block_type": words}) == spec_of(NEMOTRON_H)
    kinds = ["linear_attention"] * 3 + ["full_attention"]
    typed = spec_of({**QWEN3_NEXT, "layer_types": kinds * 12})
    assert replace(typed, pattern="MMM*") == spec_of(QWEN3_NEXT)
    inside = {"model_type": "qwen3_5_moe", "text_config": QWEN3_NEXT}
    assert spec_of(inside) == spec_of(QWEN3_NEXT)
    assert spec_of({**JAMBA, "mamba_dt_rank": "auto"}) == spec_of(JAMBA)


@pytest.mark.parametrize(
    ("document", "says"),
    [
        (
            {**NEMOTRON_H, "num_hidden_layers": 51},
            "52 symbols for num_hidden",
        ),
        ({**NEMOTRON_H, "hybrid_override_pattern": "X" * 52}, "'X'"),
        ({**NEMOTRON_H, "use_bias": True}, "use_bias"),
        ({**NEMOTRON_H, "n_groups": 7}, "groups=7"),
        (
            {**SUPER, "mtp_hybrid_override_pattern": "M*E"},
            "mtp_hybrid_override_pattern",
        ),
        ({**QWEN3_NEXT, "layer_types": ["mamba"] * 48}, "layer_types mamba"),
        ({**QWEN3_NEXT, "layer_types": ["full_attention"]}, "names 1 layers"),
        ({**QWEN3_NEXT, "mlp_only_layers": [0]}, "mlp_only_layers"),
        ({**QWEN3_NEXT, "full_attention_interval": 0}, "full_attention_interval=0"),
        ({**QWEN3_NEXT, "full_attention_interval": 99}, "full_attention_interval=99"),
        ({**JAMBA, "attn_layer_offset": 8}, "attn_layer_offset=8"),
        ({**JAMBA, "attn_layer_period": 0}, "attn_layer_period=0 must be at least 1"),
        ({**JAMBA, "mamba_proj_bias": True}, "mamba_proj_bias"),
        ({**MINIMAX, "attn_type_list": [2] * 80}, "attn_type_list"),
        ({**MINIMAX, "attn_type_list": []}, "must name all 80 layers"),
        ({"model_type": "zamba2"}, "model_type zamba2"),
    ],
)
def test_what_is_not_read_is_refused_by_name(
    document: dict[str, Any], says: str
) -> None:
    with pytest.raises(MeshwrightError, match=says.replace("*", r"\*")) as caught:
        spec_of(document)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"pattern": "M?"}, "'\\?'"),
        ({"pattern": "*"}, "recurrence needs a pattern"),
        ({"recurrence": None}, "needs recurrence"),
        ({"pattern": "MS-"}, "needs window"),
        ({"pattern": "ME"}, "needs moe"),
        ({"window": 8, "window_every": 2}, "window_every"),
    ],
)
def test_patterns_that_cannot_be(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(InvalidSpec, match=says):
        replace(as_in_catalogue("nemotron-h-8b"), **changes)


@pytest.mark.parametrize("name", ["nemotron-3-super", "jamba-v0.1", "qwen3-next"])
def test_a_hybrid_is_read_back_as_it_was_written(name: str, tmp_path: Path) -> None:
    spec = as_in_catalogue(name)
    text = json.dumps(spec_document(spec), allow_nan=False)
    assert parse_model(json.loads(text), what="spec").spec == spec
    (tmp_path / "one.json").write_text(text)
    assert model(str(tmp_path / "one.json")).spec == spec


def test_mtp_of_deepseek_and_nemotron_is_a_layer_more() -> None:
    """DeepSeek-V3: two norms, 2h to h, a layer, a norm (section 2.2)."""
    spec = as_in_catalogue("nemotron-3-super")
    with_it, without = parameters(spec), parameters(replace(spec, multi_token_heads=0))
    assert with_it.total == without.total
    attention = 4096 * (2 * 4096 + 2 * 256)
    shared, latent = 2 * 4096 * 5376, 2 * 4096 * 1024
    experts = 512 * (2 * 1024 * 2688 + 4096)
    layer = attention + shared + latent + experts + 2 * 4096
    assert with_it.prediction == layer + 2 * 4096**2 + 3 * 4096


def test_other_families_still_refuse_linear_layers() -> None:
    llama = {
        "model_type": "qwen2",
        "hidden_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "intermediate_size": 128,
        "vocab_size": 512,
        "max_position_embeddings": 128,
        "layer_types": ["linear_attention", "full_attention"],
    }
    with pytest.raises(Unsupported, match="linear_attention"):
        spec_of(llama)
