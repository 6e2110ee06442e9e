"""Decoders and mixtures of Hugging Face: GPT-2, Llama, Mixtral, DeepSeek …"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from profiles.errors import InvalidSpec
from profiles.models.huggingface.rotary import (
    EXACT,
    Config,
    Read,
    layer_types,
    numerics_of,
    qwen3,
    rotary,
    rotation_of,
    window_of,
    windows,
)
from profiles.models.spec import DecoderSpec, MlaSpec, MoeSpec, Numerics


def _routing(config: Config, *, normalised: bool) -> dict[str, Any]:
    """Numerics of a softmax router, whose weights the class divides by their sum or
    not. The loss that balances experts is over all layers, and left out by default."""
    jitter = config.get("router_jitter_noise", float, 0.0)
    balanced = config.flag("output_router_logits", False)
    beyond = {
        f"router_jitter_noise {jitter:g}": jitter > 0,
        "output_router_logits (a balancing loss over all layers)": balanced,
    }
    return {
        "routing_norm": 1.0 if normalised else None,
        "not_computed": tuple(name for name, asked in beyond.items() if asked),
    }


def _moe(config: Config, experts: str, width: str, **rest: Any) -> MoeSpec:
    """The experts; *experts* and *width* are the keys of how many and how wide."""
    given = {
        "experts": config.count(experts),
        "experts_per_token": config.count("num_experts_per_tok"),
        "expert_ffn_hidden": config.count(width),
    }
    return MoeSpec(**{**given, **rest})


def _mixtral(config: Config) -> Read:
    moe = _moe(config, "num_local_experts", "intermediate_size")
    return rotary(
        config,
        kv_heads=config.count("num_key_value_heads", 8),
        window=window_of(config, None),
        moe=moe,
        theta=1e6,
        numerics={"epsilon": 1e-5, **_routing(config, normalised=True)},
    )


def _first_and_step(config: Config) -> tuple[int, int]:
    """Which layers of a Qwen have experts: (the first one, each so manieth)."""
    dense: list[Any] = config.get("mlp_only_layers", list, [])
    step = config.count("decoder_sparse_step", 1)
    leading = len(dense)
    if dense != list(range(leading)) or (dense and step != 1):
        raise config.unsupported(
            "mlp_only_layers that are not the first ones (or beside a "
            "decoder_sparse_step)"
        )
    return leading or step - 1, step


def _qwen3_moe(config: Config) -> Read:
    first, step = _first_and_step(config)
    moe = _moe(
        config,  # transformers 5 writes the other name
        "num_experts" if config.has("num_experts") else "num_local_experts",
        "moe_intermediate_size",
        first_layer=first,
        every=step,
    )
    normalised = config.flag("norm_topk_prob", False)
    return qwen3(config, moe=moe, numerics=_routing(config, normalised=normalised))


def _qwen2_moe(config: Config) -> Read:
    first, step = _first_and_step(config)
    moe = _moe(
        config,
        "num_experts",
        "moe_intermediate_size",
        shared_experts=1,
        shared_ffn_hidden=config.count("shared_expert_intermediate_size"),
        shared_gate=True,
        first_layer=first,
        every=step,
    )
    windowed = config.flag("use_sliding_window", False)
    window = window_of(config, 4096) if windowed else None
    normalised = config.flag("norm_topk_prob", False)
    return rotary(
        config,
        attention_bias=config.flag("qkv_bias", True),
        **windows(config, window, from_layer=28),
        moe=moe,
        numerics=_routing(config, normalised=normalised),
    )


def _deepseek_v3(config: Config) -> Read:
    every = config.count("moe_layer_freq", 1)
    first = config.count("first_k_dense_replace", 0)
    if every < 1 or first % every:
        raise config.unsupported(
            f"first_k_dense_replace={first} that is no multiple of "
            f"moe_layer_freq={every}"
        )
    mla = MlaSpec(
        kv_rank=config.count("kv_lora_rank"),
        query_rank=config.count("q_lora_rank", None),
        rope_head_dim=config.count("qk_rope_head_dim"),
        nope_head_dim=config.count("qk_nope_head_dim"),
        value_head_dim=config.count("v_head_dim"),
    )
    groups = config.count("n_group", 1)
    moe = _moe(
        config,
        "n_routed_experts",
        "moe_intermediate_size",
        shared_experts=config.count("n_shared_experts", 0),
        shared_ffn_hidden=config.count("moe_intermediate_size"),
        first_layer=first,
        every=every,
        router_groups=groups,
        groups_per_token=config.count("topk_group", None) if groups > 1 else None,
    )
    return rotary(
        config,
        head_dim=mla.nope_head_dim,
        multi_token_heads=config.count("num_nextn_predict_layers", 0),
        mla=mla,
        moe=moe,
    )


def _gpt_oss(config: Config) -> Read:
    kinds: list[Any] = config.get("layer_types", list, [])
    turns = ["sliding_attention", "full_attention"] * len(kinds)
    regular = kinds == turns[: len(kinds)]
    pattern = "" if regular else layer_types(config, config.count("num_hidden_layers"))
    moe = MoeSpec(
        experts=config.count("num_local_experts"),
        experts_per_token=config.count("num_experts_per_tok", 4),
        expert_ffn_hidden=config.count("intermediate_size"),
        router_bias=True,
    )
    return rotary(
        config,
        head_dim=config.head_dim(64),
        attention_bias=True,
        attention_sinks=True,
        output_bias=True,
        mlp_bias=True,
        window=window_of(config, 128),
        window_every=2 if regular else 1,
        pattern=pattern,
        moe=moe,
        theta=150000.0,
        numerics={"epsilon": 1e-5},
    )


def _llama4(config: Config) -> Read:
    """The text decoder; beside a vision encoder it stands under `text_config`."""
    text = config.inside("text_config") if config.has("text_config") else config
    width, layers = text.count("intermediate_size"), text.count("num_hidden_layers")
    step = text.count("interleave_moe_layer_step", 1)
    named = text.get("moe_layers", list, None)
    wanted = range(step - 1, layers, max(step, 1))
    if named is not None and named != list(wanted[: len(named) + 1]):
        raise text.unsupported("moe_layers other than each interleave_moe_layer_step")
    moe = MoeSpec(
        experts=text.count("num_local_experts"),
        experts_per_token=text.count("num_experts_per_tok", 1),
        expert_ffn_hidden=width,
        shared_experts=1,
        shared_ffn_hidden=width,
        first_layer=max(step - 1, 0),
        every=step,
    )
    biased = text.flag("attention_bias", False)
    return rotary(
        text,
        ffn_hidden=text.count("intermediate_size_mlp"),
        head_dim=text.head_dim(128),
        attention_bias=biased,
        output_bias=biased,
        moe=moe,
        theta=500000.0,
        numerics={"epsilon": 1e-5, **_llama4_numerics(text, layers)},
    )


def _llama4_numerics(text: Config, layers: int) -> dict[str, Any]:
    """Layers that are not turned, and the router: σ of each score multiplies what its
    expert takes. Attention is plain up to a chunk, and to where it is tempered."""
    every = text.count("no_rope_layer_interval", 4)
    turned: list[Any] = text.get("no_rope_layers", list, [])[:layers]
    if turned:
        every = turned.index(0) + 1 if 0 in turned else 0
    reach = [text.nullable("attention_chunk_size", int, 8192)]
    if text.asked("attn_temperature_tuning", True) and 0 < every <= layers:
        reach.append(max(text.count("floor_scale", 8192) - 1, 1))
    pattern = [int(not every or (n + 1) % every > 0) for n in range(len(turned))]
    odd = bool(turned) and (turned != pattern or len(turned) < layers)
    return {
        "unrotated_every": every,
        "head_rms_norm": text.flag("use_qk_norm", True),
        "routing": "sigmoid",
        "routing_norm": None,
        "weighted_input": True,
        "longest": min((one for one in reach if one), default=None),
        "not_computed": ("no_rope_layers that are not each so manieth",) if odd else (),
    }


def _dbrx(config: Config) -> Read:
    hidden, heads = config.count("d_model"), config.count("n_heads")
    attention, ffn = config.inside("attn_config"), config.inside("ffn_config")
    width = ffn.count("ffn_hidden_size")
    named = ffn.inside("ffn_act_fn", {})
    if heads < 1 or hidden % heads:
        raise InvalidSpec(f"n_heads={heads} does not divide d_model={hidden}")
    jitter = ffn.get("moe_jitter_eps", float, 0.0)
    numerics = numerics_of(
        config,
        rotation=rotation_of(config, attention.get("rope_theta", float, 10000.0)),
        not_computed=(f"moe_jitter_eps {jitter:g}",) if jitter else (),
        norm_epsilon=1e-5,
        exact_gelu=named.get("name", str, "silu") in EXACT,
        qkv_clip=attention.get("clip_qkv", float, None),
        attention_dropout=attention.get("attn_pdrop", float, 0.0),
        embedding_dropout=config.get("emb_pdrop", float, 0.0),
        routing_norm=ffn.nullable("moe_normalize_expert_weights", float, 1.0),
    )
    spec = DecoderSpec(
        layers=config.count("n_layers"),
        hidden=hidden,
        heads=heads,
        kv_heads=attention.count("kv_n_heads", heads),
        head_dim=hidden // heads,
        vocab=config.count("vocab_size"),
        ffn_hidden=width,
        gated_mlp=True,
        activation=named.activation("name", "silu"),
        norm_bias=False,
        position="rotary",
        attention_bias=False,
        output_bias=False,
        mlp_bias=False,
        tied_embeddings=config.flag("tie_word_embeddings", False),
        dropout=config.get("resid_pdrop", float, 0.0),
        moe=MoeSpec(
            experts=ffn.count("moe_num_experts"),
            experts_per_token=ffn.count("moe_top_k"),
            expert_ffn_hidden=width,
        ),
        numerics=numerics,
    )
    return spec, config.count("max_seq_len", 2048)


MIXTURES: dict[str, Callable[[Config], Read]] = {
    "mixtral": _mixtral,
    "qwen2_moe": _qwen2_moe,
    "qwen3_moe": _qwen3_moe,
    "deepseek_v2": _deepseek_v3,
    "deepseek_v3": _deepseek_v3,
    "gpt_oss": _gpt_oss,
    "llama4": _llama4,
    "llama4_text": _llama4,
    "dbrx": _dbrx,
}


def _gpt2(config: Config) -> Read:
    hidden, heads = config.count("n_embd"), config.count("n_head")
    if heads < 1 or hidden % heads:
        raise InvalidSpec(f"n_head={heads} does not divide n_embd={hidden}")
    longest = config.count("n_positions", config.count("n_ctx", 1024))
    beyond = {
        "scale_attn_weights false": not config.flag("scale_attn_weights", True),
        "scale_attn_by_inverse_layer_idx": config.flag(
            "scale_attn_by_inverse_layer_idx", False
        ),
        "add_cross_attention": config.flag("add_cross_attention", False),
    }
    numerics = Numerics(
        norm_epsilon=config.get("layer_norm_epsilon", float, 1e-5),
        exact_gelu=config.get("activation_function", str, "gelu_new") in EXACT,
        attention_dropout=config.get("attn_pdrop", float, 0.1),
        embedding_dropout=config.get("embd_pdrop", float, 0.1),
        not_computed=tuple(name for name, asked in beyond.items() if asked),
    )
    spec = DecoderSpec(
        layers=config.count("n_layer"),
        hidden=hidden,
        heads=heads,
        kv_heads=heads,
        head_dim=hidden // heads,
        vocab=config.count("vocab_size"),
        ffn_hidden=config.count("n_inner", 4 * hidden),
        activation=config.activation("activation_function", "gelu_new"),
        max_positions=longest,
        tied_embeddings=config.flag("tie_word_embeddings", True),
        dropout=config.get("resid_pdrop", float, 0.1),
        numerics=numerics,
    )
    return spec, longest


def _llama(config: Config) -> Read:
    biased = config.flag("attention_bias", False)
    return rotary(
        config,
        attention_bias=biased,
        output_bias=biased,
        mlp_bias=config.flag("mlp_bias", False),
    )


def _mistral(config: Config) -> Read:
    return rotary(
        config,
        kv_heads=config.count("num_key_value_heads", 8),
        **windows(config, window_of(config, 4096)),
    )


def _qwen2(config: Config) -> Read:
    windowed = config.flag("use_sliding_window", False)
    window = window_of(config, 4096) if windowed else None
    return rotary(config, attention_bias=True, **windows(config, window, from_layer=28))


def _qwen3(config: Config) -> Read:
    return qwen3(config, head_dim=config.head_dim(128))


PLAIN: dict[str, Callable[[Config], Read]] = {
    "gpt2": _gpt2,
    "llama": _llama,
    "mistral": _mistral,
    "qwen2": _qwen2,
    "qwen3": _qwen3,
}
