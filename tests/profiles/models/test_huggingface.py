"""`profiles.models.huggingface`: configs as they are published, cut to what is read."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from profiles.errors import InvalidFile, InvalidSpec, MeshwrightError, Unsupported
from profiles.models.catalog import model
from profiles.models.configs import parse_config
from profiles.models.decoder import decoder_graph
from profiles.models.graph import activation_function
from profiles.models.param_count import parameters
from profiles.models.spec import USUAL, DecoderSpec, Numerics, RopeScaling


def config(
    kind: str, layers: int, hidden: int, heads: int, ffn: int, vocab: int, **more: Any
) -> dict[str, Any]:
    return {
        "model_type": kind,
        "num_hidden_layers": layers,
        "hidden_size": hidden,
        "num_attention_heads": heads,
        "intermediate_size": ffn,
        "vocab_size": vocab,
        "torch_dtype": "bfloat16",
        "hidden_act": "silu",
        **more,
    }


GPT2 = {
    "model_type": "gpt2",
    "n_layer": 12,
    "n_embd": 768,
    "n_head": 12,
    "n_positions": 1024,
    "vocab_size": 50257,
    "n_inner": None,
}
LLAMA3 = config(
    *("llama", 32, 4096, 32, 14336, 128256),
    num_key_value_heads=8,
    max_position_embeddings=8192,
    attention_bias=False,
    rope_theta=500000.0,
    rope_scaling=None,
)
MISTRAL = config(
    *("mistral", 32, 4096, 32, 14336, 32000),
    num_key_value_heads=8,
    max_position_embeddings=32768,
    sliding_window=4096,
)
MIXTRAL = config(
    *("mixtral", 32, 4096, 32, 14336, 32000),
    num_key_value_heads=8,
    max_position_embeddings=32768,
    num_local_experts=8,
    num_experts_per_tok=2,
    sliding_window=None,
)
QWEN2 = config(
    *("qwen2", 28, 3584, 28, 18944, 152064),
    num_key_value_heads=4,
    max_position_embeddings=131072,
    sliding_window=131072,
    use_sliding_window=False,
)
QWEN3 = config(
    *("qwen3", 36, 4096, 32, 12288, 151936),
    num_key_value_heads=8,
    head_dim=128,
    max_position_embeddings=40960,
)
QWEN3_MOE = config(
    *("qwen3_moe", 48, 2048, 32, 6144, 151936),
    num_key_value_heads=4,
    head_dim=128,
    max_position_embeddings=40960,
    num_experts=128,
    num_experts_per_tok=8,
    moe_intermediate_size=768,
    decoder_sparse_step=1,
    mlp_only_layers=[],
)
DEEPSEEK = config(
    *("deepseek_v3", 61, 7168, 128, 18432, 129280),
    num_key_value_heads=128,
    max_position_embeddings=163840,
    n_routed_experts=256,
    n_shared_experts=1,
    num_experts_per_tok=8,
    moe_intermediate_size=2048,
    first_k_dense_replace=3,
    moe_layer_freq=1,
    n_group=8,
    topk_group=4,
    kv_lora_rank=512,
    q_lora_rank=1536,
    qk_rope_head_dim=64,
    qk_nope_head_dim=128,
    v_head_dim=128,
    num_nextn_predict_layers=1,
)
DEEPSEEK_LITE = config(
    *("deepseek_v2", 27, 2048, 16, 10944, 102400),
    num_key_value_heads=16,
    max_position_embeddings=163840,
    n_routed_experts=64,
    n_shared_experts=2,
    num_experts_per_tok=6,
    moe_intermediate_size=1408,
    first_k_dense_replace=1,
    n_group=1,
    kv_lora_rank=512,
    q_lora_rank=None,
    qk_rope_head_dim=64,
    qk_nope_head_dim=128,
    v_head_dim=128,
)
QWEN2_MOE = config(
    *("qwen2_moe", 24, 2048, 16, 5632, 151936),
    num_key_value_heads=16,
    max_position_embeddings=8192,
    num_experts=60,
    num_experts_per_tok=4,
    moe_intermediate_size=1408,
    shared_expert_intermediate_size=5632,
    decoder_sparse_step=1,
)
GPT_OSS = config(
    *("gpt_oss", 36, 2880, 64, 2880, 201088),
    num_key_value_heads=8,
    head_dim=64,
    max_position_embeddings=131072,
    num_local_experts=128,
    num_experts_per_tok=4,
    sliding_window=128,
    layer_types=["sliding_attention", "full_attention"] * 18,
)
LLAMA4 = config(
    *("llama4_text", 48, 5120, 40, 8192, 202048),
    num_key_value_heads=8,
    head_dim=128,
    intermediate_size_mlp=16384,
    max_position_embeddings=1048576,
    num_local_experts=128,
    num_experts_per_tok=1,
    interleave_moe_layer_step=2,
)
MAVERICK = {"model_type": "llama4", "text_config": LLAMA4}
FFN = {"ffn_hidden_size": 10752, "moe_num_experts": 16, "moe_top_k": 4}
DBRX = {
    "model_type": "dbrx",
    "d_model": 6144,
    "n_heads": 48,
    "n_layers": 40,
    "max_seq_len": 32768,
    "vocab_size": 100352,
    "attn_config": {"kv_n_heads": 8},
    "ffn_config": FFN,
    "tie_word_embeddings": False,
}
MIXTURES = (DEEPSEEK_LITE, QWEN2_MOE, GPT_OSS, MAVERICK, DBRX)
EVERY = (
    *MIXTURES,
    LLAMA4,
    GPT2,
    LLAMA3,
    MISTRAL,
    MIXTRAL,
    QWEN2,
    QWEN3,
    QWEN3_MOE,
    DEEPSEEK,
)


def spec_of(document: object) -> DecoderSpec:
    found = parse_config(document, what="config", name="mine").spec
    assert isinstance(found, DecoderSpec)
    return found


@pytest.mark.parametrize(
    ("document", "name"),
    [
        (LLAMA3, "llama3-8b"),
        (MISTRAL, "mistral-7b"),
        (MIXTRAL, "mixtral-8x7b"),
        (QWEN3, "qwen3-8b"),
        (DEEPSEEK, "deepseek-v3"),
        (DEEPSEEK_LITE, "deepseek-v2-lite"),
        (QWEN3_MOE, "qwen3-30b-a3b"),
        (GPT_OSS, "gpt-oss-120b"),
        (MAVERICK, "llama4-maverick"),
        (DBRX, "dbrx"),
    ],
)
def test_a_config_is_what_the_catalogue_says(
    document: dict[str, Any], name: str
) -> None:
    """But for constants, which neither change shapes nor prices."""
    known = model(name).spec
    assert isinstance(known, DecoderSpec)
    found = spec_of(document)
    assert found.numerics != known.numerics
    assert replace(found, numerics=USUAL, norm_bias=True) == known


@pytest.mark.parametrize(
    ("document", "millions"),
    [(GPT2, 124.44), (QWEN2, 7615.62), (QWEN3_MOE, 30532.1), (QWEN2_MOE, 14315.8)],
    ids=["gpt2", "qwen2-7b", "qwen3-30b-a3b", "qwen1.5-moe-a2.7b"],
)
def test_parameters_are_those_of_the_model_card(
    document: dict[str, Any], millions: float
) -> None:
    found = parameters(spec_of(document)).total
    assert found / 1e6 == pytest.approx(millions, rel=1e-4)


def test_a_folder_or_a_file_will_do(tmp_path: Path) -> None:
    folder = tmp_path / "Meta-Llama-3-8B"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(LLAMA3))
    found = model(str(folder))
    assert model(str(folder / "config.json")).spec == found.spec
    assert (found.name, found.seq_len) == ("Meta-Llama-3-8B", 8192)
    assert found.spec == spec_of(LLAMA3)


def test_what_a_config_leaves_out_has_its_class_default() -> None:
    bare = {k: v for k, v in LLAMA3.items() if k != "num_key_value_heads"}
    assert spec_of(bare).kv_heads == 32
    assert spec_of({**bare, "model_type": "mistral"}).kv_heads == 8
    assert spec_of({**bare, "model_type": "mistral"}).window == 4096
    assert spec_of({**MISTRAL, "sliding_window": None}).window is None
    windowed = {**QWEN2, "use_sliding_window": True}
    assert spec_of({**windowed, "max_window_layers": 0}).window == 131072
    assert spec_of(windowed).window is None  # its default: from layer 28 on
    some = spec_of({**windowed, "max_window_layers": 20})
    assert (some.window, some.pattern) == (131072, "*" * 20 + "S" * 8)
    assert spec_of({**LLAMA3, "tie_word_embeddings": True}).tied_embeddings
    biased = spec_of({**LLAMA3, "attention_bias": True, "mlp_bias": True})
    plain = spec_of(LLAMA3)
    assert biased == replace(
        plain, attention_bias=True, output_bias=True, mlp_bias=True
    )


@pytest.mark.parametrize(
    ("name", "gated", "plain"),
    [
        ("silu", "swiglu", "silu"),
        ("swish", "swiglu", "silu"),
        ("gelu", "geglu", "gelu"),
        ("gelu_new", "geglu", "gelu"),
        ("gelu_pytorch_tanh", "geglu", "gelu"),
        ("relu", "reglu", "relu"),
    ],
)
def test_functions_go_by_several_names(name: str, gated: str, plain: str) -> None:
    assert activation_function(spec_of({**LLAMA3, "hidden_act": name})) == gated
    assert activation_function(spec_of({**GPT2, "activation_function": name})) == plain
    named = {**FFN, "ffn_act_fn": {"name": name}}
    assert activation_function(spec_of({**DBRX, "ffn_config": named})) == gated


@pytest.mark.parametrize(
    "scaling",
    [
        {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0},
        {"type": "yarn", "factor": 40},
        {"type": "linear", "factor": 2.0},
        {"rope_type": "default"},
        {"factor": 2.0},
    ],
)
def test_a_scaled_rotation_costs_what_another_does(scaling: dict[str, Any]) -> None:
    for key in ("rope_scaling", "rope_parameters"):
        found = spec_of({**LLAMA3, key: scaling})
        assert decoder_graph(found) == decoder_graph(spec_of(LLAMA3))


def test_dense_layers_among_experts() -> None:
    first = spec_of({**QWEN3_MOE, "mlp_only_layers": [0, 1]}).moe
    other = spec_of({**QWEN3_MOE, "decoder_sparse_step": 2}).moe
    assert first is not None
    assert other is not None
    assert (first.first_layer, first.every) == (2, 1)
    assert (other.first_layer, other.every) == (1, 2)
    with pytest.raises(Unsupported, match="mlp_only_layers"):
        spec_of({**QWEN3_MOE, "mlp_only_layers": [5]})


@pytest.mark.parametrize(
    ("document", "error", "said"),
    [
        ({"model_type": "novel"}, Unsupported, "supported: gpt2, llama,"),
        ({**LLAMA3, "model_type": 7}, InvalidFile, "model_type must be str"),
        ({**LLAMA3, "vocab_size": None}, InvalidFile, "lacks vocab_size"),
        ({**LLAMA3, "hidden_size": "4096"}, InvalidFile, "must be int, got str"),
        ({**LLAMA3, "hidden_size": True}, InvalidFile, "must be int, got bool"),
        ({**LLAMA3, "num_attention_heads": 0}, InvalidSpec, "does not divide"),
        ({**LLAMA3, "num_key_value_heads": 5}, InvalidSpec, "kv_heads=5"),
        ({**LLAMA3, "max_position_embeddings": -1}, InvalidSpec, "seq_len must"),
        ({**GPT2, "n_head": 7}, InvalidSpec, "n_head=7 does not divide"),
        ({**LLAMA3, "hidden_act": "mish"}, Unsupported, "hidden_act mish"),
        ({**LLAMA3, "hidden_act": ["silu"]}, InvalidFile, "hidden_act must be str"),
        ({**GPT2, "activation_function": "quick_gelu"}, Unsupported, "known: gelu,"),
        ({**LLAMA3, "rope_scaling": {"type": "ntk"}}, Unsupported, "rope_type ntk"),
        ({**LLAMA3, "rope_scaling": 8}, InvalidFile, "rope_scaling must be dict"),
        ({**DEEPSEEK, "moe_layer_freq": 2}, Unsupported, "first_k_dense_replace=3"),
    ],
)
def test_a_config_that_cannot_be_is_refused(
    document: dict[str, Any], error: type[Exception], said: str
) -> None:
    with pytest.raises(error, match=r"^config") as caught:
        parse_config(document, what="config", name="mine")
    assert said in str(caught.value)


values = (
    st.none()
    | st.booleans()
    | st.integers(-3, 10**20)
    | st.floats(allow_nan=False)
    | st.text(max_size=4)
    | st.lists(st.integers(0, 3), max_size=3)
    | st.dictionaries(st.text(max_size=2), st.integers(), max_size=2)
)


@given(st.sampled_from(EVERY), st.data())
def test_any_config_is_read_or_refused(
    document: dict[str, Any], data: st.DataObject
) -> None:
    keys = st.sampled_from(sorted(document))
    changes = data.draw(st.dictionaries(keys, values, max_size=3))
    try:
        said = parse_config({**document, **changes}, what="config", name="mine").name
    except MeshwrightError as error:
        said = str(error)
    assert "\n" not in said


@pytest.mark.parametrize(
    ("document", "numerics"),
    [
        (
            {**GPT2, "layer_norm_epsilon": 1e-3, "embd_pdrop": 0, "attn_pdrop": 0.2},
            Numerics(norm_epsilon=1e-3, embedding_dropout=0.0, attention_dropout=0.2),
        ),
        (
            {**GPT2, "activation_function": "gelu"},
            Numerics(exact_gelu=True, embedding_dropout=0.1, attention_dropout=0.1),
        ),
        (
            {**LLAMA3, "rms_norm_eps": 1e-4, "attention_dropout": 0.1},
            Numerics(
                norm_epsilon=1e-4, rope_theta=5e5, attention_dropout=0.1, balance=0
            ),
        ),
        (
            {**LLAMA3, "rope_scaling": {"type": "linear", "factor": 2}},
            Numerics(
                norm_epsilon=1e-6,
                rope_theta=5e5,
                rope_scaling=RopeScaling(kind="linear", factor=2.0),
                balance=0,
            ),
        ),
        (
            {
                **LLAMA3,
                "rope_theta": None,
                "rope_parameters": {
                    "rope_type": "llama3",
                    "rope_theta": 7000.0,
                    "factor": 8.0,
                    "low_freq_factor": 1.0,
                    "high_freq_factor": 4.0,
                },
            },
            Numerics(
                norm_epsilon=1e-6,
                rope_theta=7000.0,
                rope_scaling=RopeScaling(kind="llama3", factor=8.0),  # of 8192 places
                balance=0,
            ),
        ),
        (MIXTRAL, Numerics(rope_theta=1e6, balance=0)),
        (QWEN3_MOE, Numerics(norm_epsilon=1e-6, routing_norm=None, balance=0)),
        (
            {**QWEN2_MOE, "norm_topk_prob": True},
            Numerics(norm_epsilon=1e-6, balance=0),
        ),
        (
            MAVERICK,
            Numerics(
                rope_theta=5e5,
                unrotated_every=4,
                head_rms_norm=True,
                routing="sigmoid",
                routing_norm=None,
                weighted_input=True,
                longest=8191,
                balance=0,
            ),
        ),
        (
            {
                **DBRX,
                "attn_config": {"kv_n_heads": 8, "clip_qkv": 8, "rope_theta": 5e5},
                "ffn_config": {**FFN, "moe_normalize_expert_weights": None},
            },
            Numerics(
                rope_theta=5e5,
                qkv_clip=8.0,
                embedding_dropout=0.0,
                routing_norm=None,
                balance=0,
            ),
        ),
    ],
)
def test_constants_are_carried_into_the_spec(
    document: dict[str, Any], numerics: Numerics
) -> None:
    assert spec_of(document).numerics == numerics


@pytest.mark.parametrize(
    ("document", "named"),
    [
        ({**LLAMA3, "rope_scaling": {"type": "yarn", "factor": 40}}, "yarn"),
        ({**LLAMA3, "rope_scaling": {"type": "dynamic", "factor": 2}}, "dynamic"),
        ({**LLAMA3, "rope_scaling": {"type": "longrope"}}, "longrope"),
        ({**LLAMA3, "rope_scaling": {"rope_type": "llama3", "factor": 8}}, "without"),
        ({**LLAMA3, "partial_rotary_factor": 0.5}, "partial_rotary_factor 0.5"),
        (
            {**LLAMA3, "rope_parameters": {"full_attention": {"rope_theta": 1.0}}},
            "rope_parameters by layer type",
        ),
        ({**GPT2, "scale_attn_weights": False}, "scale_attn_weights false"),
        ({**GPT2, "scale_attn_by_inverse_layer_idx": True}, "inverse_layer_idx"),
        ({**MIXTRAL, "router_jitter_noise": 0.01}, "router_jitter_noise 0.01"),
        ({**QWEN2_MOE, "output_router_logits": True}, "output_router_logits"),
        (
            {**DBRX, "ffn_config": {**FFN, "moe_jitter_eps": 0.01}},
            "moe_jitter_eps 0.01",
        ),
        (
            {**LLAMA4, "no_rope_layers": [1, 0, 0] * 16},
            "no_rope_layers",
        ),
    ],
)
def test_what_is_not_computed_is_named_and_priced_without(
    document: dict[str, Any], named: str
) -> None:
    found = spec_of(document)
    assert named in ", ".join(found.numerics.not_computed)
    assert decoder_graph(found) == decoder_graph(replace(found, numerics=USUAL))


@pytest.mark.parametrize(
    ("given", "every"),
    [([1, 1, 1, 0] * 12, 4), ([1, 0] * 24, 2), ([1] * 48, 0), ([], 4), (None, 4)],
)
def test_layers_of_llama4_that_are_not_turned(given: object, every: int) -> None:
    found = spec_of({**LLAMA4, "no_rope_layers": given}).numerics
    assert (found.unrotated_every, found.not_computed) == (every, ())


def test_attention_of_llama4_is_plain_up_to_a_chunk() -> None:
    text = LLAMA4
    plain = {**text, "attn_temperature_tuning": False}
    assert spec_of({**text, "attention_chunk_size": 512}).reach == 512
    assert spec_of(plain).reach == 8192
    assert spec_of({**text, "floor_scale": 1}).reach == 1
    assert spec_of({**plain, "attention_chunk_size": None}).reach is None
    every = {**text, "no_rope_layers": [1] * 48, "attention_chunk_size": None}
    assert spec_of(every).reach is None


def test_a_qwen3_moe_without_head_dim_has_that_of_its_width() -> None:
    bare = {key: one for key, one in QWEN3_MOE.items() if key != "head_dim"}
    assert spec_of(bare).head_dim == 64
    assert spec_of({**bare, "model_type": "qwen3"}).head_dim == 128


def test_a_qwen3_moe_of_transformers_5_calls_its_experts_otherwise() -> None:
    other = {k: one for k, one in QWEN3_MOE.items() if k != "num_experts"}
    other["num_local_experts"] = QWEN3_MOE["num_experts"]
    assert spec_of(other) == spec_of(QWEN3_MOE)


def test_gates_and_biases_of_a_class_are_its_own() -> None:
    moe = spec_of(QWEN2_MOE).moe
    assert moe is not None
    assert moe.shared_gate
    assert not spec_of({**QWEN2_MOE, "qkv_bias": False}).attention_bias
    assert not spec_of(DBRX).norm_bias
    biased = {**LLAMA4, "attention_bias": True}
    assert spec_of(biased).attention_bias
    with pytest.raises(Unsupported, match="moe_layers"):
        spec_of({**biased, "moe_layers": [0, 5]})
    assert spec_of({**biased, "moe_layers": list(range(1, 48, 2))}).moe is not None


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("rms_norm_eps", 2.0, "norm_epsilon must be in [0, 1)"),
        ("rope_theta", 0.0, "rope_theta must be above 0"),
        ("attention_dropout", -0.1, "attention_dropout must be in [0, 1)"),
        ("rope_scaling", {"type": "linear", "factor": 0}, "factor must be above 0"),
    ],
)
def test_constants_that_cannot_be_are_refused(
    key: str, value: object, said: str
) -> None:
    with pytest.raises(InvalidSpec) as caught:
        spec_of({**LLAMA3, key: value})
    assert said in str(caught.value)
