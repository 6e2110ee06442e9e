"""Decoders that differ from GPT-2 and Llama in norms, positions or blocks: Gemma,
GPT-NeoX, OPT, Falcon, Phi 3, OLMo 2, Bloom; and Mamba, which has no attention.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from profiles.errors import InvalidSpec
from profiles.models.huggingface.rotary import (
    EXACT,
    Config,
    Read,
    layer_types,
    rotary,
    rotation_of,
    window_of,
    windows,
)
from profiles.models.spec import Arrangement, DecoderSpec, Numerics, RecurrenceSpec

_SCALED = "embeddings times √hidden, norms by 1 + w"  # Gemma's
OPT_OFFSET: Final = 2  # rows of its table of positions that no token has


def _gemma(config: Config) -> Read:
    config = config.defaulting(max_position_embeddings=8192)
    name = config.get("hidden_act", str, "gelu_pytorch_tanh")
    return rotary(config, **_gemma_shape(config, name))


def _gemma_shape(
    config: Config, activation: str = "gelu_pytorch_tanh", *beyond: str
) -> dict[str, Any]:
    """What all Gemmas share."""
    biased = config.flag("attention_bias", False)
    name = config.get("hidden_activation", str, activation)
    return {
        "kv_heads": config.count("num_key_value_heads"),
        "head_dim": config.head_dim(256),
        "activation": config.activation("hidden_activation", activation),
        "attention_bias": biased,
        "output_bias": biased,
        "tied_embeddings": config.flag("tie_word_embeddings", True),
        "numerics": {"exact_gelu": name in EXACT, "not_computed": (_SCALED, *beyond)},
    }


def _capped(config: Config, default: float | None) -> tuple[str, ...]:
    """The logits that a Gemma keeps within bounds."""
    keys = ("attn_logit_softcapping", "final_logit_softcapping")
    given = [config.nullable(key, float, default) for key in keys]
    return tuple(key for key, value in zip(keys, given, strict=True) if value)


def _gemma2(config: Config) -> Read:
    config = config.defaulting(max_position_embeddings=8192)
    window = window_of(config, 4096)
    turns: dict[str, Any] = {"window_every": 2}
    if config.get("layer_types", list, []):
        turns = windows(config, window)
    return rotary(
        config,
        **_gemma_shape(config, "gelu_pytorch_tanh", *_capped(config, 30.0)),
        **{"window": window, **turns},
        arrangement=Arrangement(norms="both"),
    )


def _gemma3(config: Config) -> Read:
    """The text decoder; beside a vision encoder it stands under `text_config`."""
    text = config.inside("text_config") if config.has("text_config") else config
    text = text.defaulting(max_position_embeddings=131072)
    if config.has("vision_config"):
        config.assume("the text decoder alone, without the vision encoder")
    every, layers = text.count("sliding_window_pattern", 6), text.layers
    pattern = layer_types(text, layers) or "S" * (every - 1) + "*"
    return rotary(
        text,
        **_gemma_shape(text, "gelu_pytorch_tanh", *_capped(text, None)),
        window=window_of(text, 4096),
        pattern=pattern,
        qk_norm=True,
        theta=1e6,
        arrangement=Arrangement(norms="both"),
    )


def _phi3(config: Config) -> Read:
    config = config.defaulting(max_position_embeddings=4096)
    dropped = config.get("resid_pdrop", float, 0.0)
    return rotary(
        config,
        window=window_of(config, None),
        dropout=dropped,
        numerics={
            "epsilon": 1e-5,
            "embedding_dropout": config.get("embd_pdrop", float, 0.0),
        },
    )


def _olmo2(config: Config) -> Read:
    config = config.defaulting(max_position_embeddings=2048)
    return rotary(config, **_olmo_shape(config))


def _olmo_shape(config: Config) -> dict[str, Any]:
    biased = config.flag("attention_bias", False)
    return {
        "attention_bias": biased,
        "output_bias": biased,
        "arrangement": Arrangement(norms="after", wide_qk_norm=True),
        "numerics": {"epsilon": 1e-5},
    }


def _olmo3(config: Config) -> Read:
    config = config.defaulting(max_position_embeddings=2048)
    pattern = layer_types(config, config.layers) or "SSS*"
    return rotary(
        config,
        **_olmo_shape(config),
        window=window_of(config, 4096),
        pattern=pattern,
        theta=500000.0,
    )


def _plain(config: Config, **differences: Any) -> DecoderSpec:
    """What GPT's children share: layer norms with biases, a plain MLP."""
    hidden, heads = differences["hidden"], differences["heads"]
    if heads < 1 or hidden % heads:
        raise InvalidSpec(f"{heads} heads do not divide a hidden size of {hidden}")
    shape = {
        "vocab": config.count("vocab_size"),
        "kv_heads": heads,
        "head_dim": hidden // heads,
        "norm": "layernorm",
    }
    return DecoderSpec(**{**shape, **differences})


def _numerics(config: Config, activation: str, **differences: Any) -> Numerics:
    name = "layer_norm_eps" if config.has("layer_norm_eps") else "layer_norm_epsilon"
    return Numerics(
        **{
            "norm_epsilon": config.get(name, float, 1e-5),
            "exact_gelu": activation in EXACT,
            "attention_dropout": config.get("attention_dropout", float, 0.0),
            **differences,
        }
    )


def _gpt_neox(config: Config) -> Read:
    turned = rotation_of(config, config.get("rotary_emb_base", float, 10000.0))
    part = config.get("rotary_pct", float, 1.0)
    beyond = (f"rotary_pct {part:g}",) if part != 1 else ()
    parallel, biased = (
        config.flag("use_parallel_residual", True),
        config.flag("attention_bias", True),
    )
    turned["not_computed"] = (*turned["not_computed"], *beyond)
    spec = _plain(
        config,
        layers=config.layers,
        hidden=config.count("hidden_size"),
        heads=config.count("num_attention_heads"),
        ffn_hidden=config.count("intermediate_size"),
        activation=config.activation("hidden_act", "gelu"),
        position="rotary",
        attention_bias=biased,
        output_bias=biased,
        tied_embeddings=config.flag("tie_word_embeddings", False),
        dropout=config.get("hidden_dropout", float, 0.0),
        parallel_block=parallel,
        arrangement=Arrangement(mlp_norm=parallel),
        numerics=_numerics(config, config.get("hidden_act", str, "gelu"), **turned),
    )
    return spec, config.count("max_position_embeddings", 2048)


def _opt(config: Config) -> Read:
    hidden, longest = (
        config.count("hidden_size"),
        config.count("max_position_embeddings", 2048),
    )
    for wrong, feature in (
        (not config.flag("do_layer_norm_before", True), "do_layer_norm_before false"),
        (
            config.count("word_embed_proj_dim", hidden) != hidden,
            "a word_embed_proj_dim other than hidden_size",
        ),
        (config.flag("_remove_final_layer_norm", False), "_remove_final_layer_norm"),
    ):
        if wrong:
            raise config.unsupported(feature)
    biased = config.flag("enable_bias", True)
    name = config.get("activation_function", str, "relu")
    spec = _plain(
        config,
        layers=config.layers,
        hidden=hidden,
        heads=config.count("num_attention_heads"),
        ffn_hidden=config.count("ffn_dim"),
        activation=config.activation("activation_function", "relu"),
        max_positions=longest + OPT_OFFSET,
        attention_bias=biased,
        output_bias=biased,
        mlp_bias=biased,
        norm_bias=config.flag("layer_norm_elementwise_affine", True),
        tied_embeddings=config.flag("tie_word_embeddings", True),
        dropout=config.get("dropout", float, 0.1),
        numerics=_numerics(
            config,
            name,
            embedding_dropout=0.0,
            not_computed=(f"positions from row {OPT_OFFSET} of their table",),
        ),
    )
    return spec, longest


def _falcon(config: Config) -> Read:
    hidden, heads = config.count("hidden_size"), config.count("num_attention_heads")
    renewed = config.flag("new_decoder_architecture", False)
    alone = config.flag("multi_query", True) and not renewed
    parallel = config.flag("parallel_attn", True) or renewed
    norms = config.count("num_ln_in_parallel_attn", 2 if renewed else 1)
    biased, alibi = config.flag("bias", False), config.flag("alibi", False)
    turned = {} if alibi else rotation_of(config, 10000.0)
    spec = _plain(
        config,
        layers=config.layers,
        hidden=hidden,
        heads=heads,
        kv_heads=1 if alone else config.count("num_kv_heads", heads),
        ffn_hidden=config.count("ffn_hidden_size", 4 * hidden),
        activation=config.activation("activation", "gelu"),
        position="alibi" if alibi else "rotary",
        attention_bias=biased,
        output_bias=biased,
        mlp_bias=biased,
        tied_embeddings=config.flag("tie_word_embeddings", True),
        dropout=config.get("hidden_dropout", float, 0.0),
        parallel_block=parallel,
        arrangement=Arrangement(mlp_norm=parallel and norms == 2),
        numerics=_numerics(config, config.get("activation", str, "gelu"), **turned),
    )
    return spec, config.count("max_position_embeddings", 2048)


def _bloom(config: Config) -> Read:
    key = "hidden_size" if config.has("hidden_size") else "n_embed"
    layers = "n_layer" if config.has("n_layer") else "num_hidden_layers"
    heads = "n_head" if config.has("n_head") else "num_attention_heads"
    hidden = config.count(key)
    if config.flag("apply_residual_connection_post_layernorm", False):
        raise config.unsupported("apply_residual_connection_post_layernorm")
    spec = _plain(
        config,
        layers=config.count(layers),
        hidden=hidden,
        heads=config.count(heads),
        ffn_hidden=4 * hidden,
        position="alibi",
        dropout=config.get("hidden_dropout", float, 0.0),
        tied_embeddings=config.flag("tie_word_embeddings", True),
        arrangement=Arrangement(embedding_norm=True),
        numerics=_numerics(config, "gelu_new"),
    )
    return spec, config.count("seq_length", 2048)


def _mamba(config: Config, *beyond: str) -> Read:
    hidden = config.count("hidden_size")
    rank = -(-hidden // 16)
    if not config.equals("time_step_rank", "auto"):
        rank = config.count("time_step_rank", rank)
    mixer = RecurrenceSpec(
        kind="mamba-1",
        heads=config.count("intermediate_size", config.count("expand", 2) * hidden),
        head_dim=1,
        state=config.count("state_size", 16),
        conv_width=config.count("conv_kernel", 4),
        conv_bias=config.flag("use_conv_bias", True),
        dt_rank=rank,
    )
    return _of_mixers(config, mixer, tied=True, beyond=beyond)


def _falcon_mamba(config: Config) -> Read:
    return _mamba(config, "norms of B, C and step sizes without weights")


def _mamba2(config: Config) -> Read:
    mixer = RecurrenceSpec(
        kind="mamba-2",
        heads=config.count("num_heads", 128),
        head_dim=config.count("head_dim", 64),
        state=config.count("state_size", 128),
        groups=config.count("n_groups", 8),
        conv_width=config.count("conv_kernel", 4),
        conv_bias=config.flag("use_conv_bias", True),
        chunk=config.count("chunk_size", 256),
    )
    return _of_mixers(config, mixer, tied=False)


def _of_mixers(
    config: Config, mixer: RecurrenceSpec, *, tied: bool, beyond: tuple[str, ...] = ()
) -> Read:
    """Layers that are a norm and a *mixer* each."""
    if config.flag("use_bias", False):
        raise config.unsupported("use_bias (biases of a mixer's products)")
    hidden = config.count("hidden_size")
    spec = DecoderSpec(
        layers=config.layers,
        hidden=hidden,
        heads=mixer.heads,
        kv_heads=mixer.heads,
        head_dim=mixer.head_dim,
        vocab=config.count("vocab_size"),
        ffn_hidden=hidden,
        norm="rmsnorm",
        position="none",
        tied_embeddings=config.flag("tie_word_embeddings", tied),
        pattern="M",
        recurrence=mixer,
        arrangement=Arrangement(mixers_alone=True),
        numerics=Numerics(
            norm_epsilon=config.get("layer_norm_epsilon", float, 1e-5),
            not_computed=beyond,
        ),
    )
    return spec, config.count("max_position_embeddings", 2048)


MORE: Final[dict[str, Callable[[Config], Read]]] = {
    "gemma": _gemma,
    "gemma2": _gemma2,
    "gemma3": _gemma3,
    "gemma3_text": _gemma3,
    "gpt_neox": _gpt_neox,
    "opt": _opt,
    "falcon": _falcon,
    "phi3": _phi3,
    "olmo2": _olmo2,
    "olmo3": _olmo3,
    "bloom": _bloom,
    "mamba": _mamba,
    "mamba2": _mamba2,
    "falcon_mamba": _falcon_mamba,
}
