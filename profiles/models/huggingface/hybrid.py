"""Configurations of models that mix recurrences, attention and MLPs layer by layer.

    nemotron_h   `hybrid_override_pattern` or `layers_block_type`, `mamba_*`, `ssm_*`
    qwen3_next   `layer_types` or `full_attention_interval`, `linear_*`
    qwen3_5_moe  the same, under `text_config`
    jamba        `attn_layer_period`, `expert_layer_period`, `mamba_*`
    minimax      `attn_type_list`, or `layer_types`

Keys and defaults are those of the `configuration_*.py` of transformers 4.5x, and of the
files beside the weights where transformers has none.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from profiles.errors import InvalidSpec
from profiles.files import shown
from profiles.models.huggingface.rotary import (
    Config,
    Read,
    layer_types,
    numerics_of,
    rotary,
)
from profiles.models.spec import (
    DecoderSpec,
    MoeSpec,
    Numerics,
    RecurrenceSpec,
)

_BLOCKS: Final = {"mamba": "M", "attention": "*", "mlp": "-", "moe": "E"}
# Keys that mean another computation where they are set.
_NEMOTRON_OTHERS: Final = ("use_bias", "mamba_proj_bias", "residual_in_fp32")
_LIGHTNING, _SOFTMAX = 0, 1  # in MiniMax's `attn_type_list`


def _require_plain(config: Config, *keys: str) -> None:
    """Raise Unsupported for one of *keys* that is set."""
    for key in keys:
        if config.asked(key, False):
            raise config.unsupported(f"{key} set")


def _pattern_of(config: Config, layers: int) -> str:
    """Of a Nemotron-H, a symbol a layer."""
    blocks: list[Any] = config.get("layers_block_type", list, [])
    foreign = [one for one in blocks if one not in _BLOCKS]
    if foreign:
        raise config.unsupported(
            f"layers_block_type {shown(foreign[0])}", f"known: {', '.join(_BLOCKS)}"
        )
    pattern = "".join(_BLOCKS[one] for one in blocks)
    pattern = pattern or config.get("hybrid_override_pattern", str)
    if len(pattern) != layers:
        raise InvalidSpec(
            f"hybrid_override_pattern has {len(pattern)} symbols for "
            f"num_hidden_layers={layers}"
        )
    return str(pattern)


def _nemotron_h(config: Config) -> Read:
    layers = config.count("num_hidden_layers", 52)
    _require_plain(config, *_NEMOTRON_OTHERS)
    ahead = config.get("mtp_hybrid_override_pattern", str, "*E")
    heads_ahead = config.count("num_nextn_predict_layers", 0)
    pattern = _pattern_of(config, layers)
    if heads_ahead and ahead != ("*E" if "E" in pattern else "*-"):
        raise config.unsupported(f"mtp_hybrid_override_pattern {shown(ahead)}")
    mixer = RecurrenceSpec(
        kind="mamba-2",
        heads=config.count("mamba_num_heads", 128),
        head_dim=config.count("mamba_head_dim", 64),
        state=config.count("ssm_state_size", 128),
        groups=config.count("n_groups", config.count("mamba_n_groups", 8)),
        conv_width=config.count("conv_kernel", config.count("mamba_d_conv", 4)),
        conv_bias=config.flag("use_conv_bias", config.flag("mamba_conv_bias", True)),
        chunk=config.count("chunk_size", config.count("mamba_chunk_size", 128)),
    )
    biased = config.flag("attention_bias", False)
    heads = config.count("num_attention_heads", 32)
    spec = DecoderSpec(
        layers=layers,
        hidden=config.count("hidden_size", 4096),
        heads=heads,
        kv_heads=config.count("num_key_value_heads", 8),
        head_dim=config.count("head_dim", config.count("attention_head_dim", 128)),
        vocab=config.count("vocab_size", 131072),
        ffn_hidden=config.count("intermediate_size", 21504),
        activation=config.activation("mlp_hidden_act", "relu2"),
        norm="rmsnorm",
        position="none",
        attention_bias=biased,
        output_bias=biased,
        mlp_bias=config.flag("mlp_bias", False),
        tied_embeddings=config.flag("tie_word_embeddings", False),
        dropout=config.get("hidden_dropout", float, 0.0),
        multi_token_heads=heads_ahead,
        pattern=pattern,
        recurrence=mixer if "M" in pattern else None,
        moe=_nemotron_experts(config) if "E" in pattern else None,
        numerics=Numerics(
            norm_epsilon=config.get("layer_norm_epsilon", float, 1e-5),
            attention_dropout=config.get("attention_dropout", float, 0.0),
            balance=0.0,
            routing="sigmoid" if "E" in pattern else "softmax",
        ),
    )
    return spec, config.count("max_position_embeddings", 4096)


def _nemotron_experts(config: Config) -> MoeSpec:
    groups = config.count("n_group", 1)
    width = config.count("moe_intermediate_size")
    shared = config.count("n_shared_experts", 1)
    return MoeSpec(
        experts=config.count("n_routed_experts"),
        experts_per_token=config.count("num_experts_per_tok"),
        expert_ffn_hidden=width,
        shared_experts=shared,
        shared_ffn_hidden=config.count("moe_shared_expert_intermediate_size", width)
        if shared
        else 0,
        router_groups=groups,
        groups_per_token=config.count("topk_group", None) if groups > 1 else None,
        latent=config.count("moe_latent_size", 0),
    )


def _qwen3_next(config: Config) -> Read:
    """Also of Qwen3.5's text model; queries come with a gate of attention's output."""
    if config.has("text_config"):
        config = config.inside("text_config")
    layers, every = _layers_and_interval(config)
    pattern = layer_types(config, layers) or ("M" * (every - 1) + "*")
    if "S" in pattern:
        raise config.unsupported("layer_types 'sliding_attention'")
    dense: list[Any] = config.get("mlp_only_layers", list, [])
    if dense or config.count("decoder_sparse_step", 1) != 1:
        raise config.unsupported(
            "mlp_only_layers or a decoder_sparse_step other than 1"
        )
    shared = config.count("shared_expert_intermediate_size", 512)
    moe = MoeSpec(
        experts=config.count("num_experts", 512),
        experts_per_token=config.count("num_experts_per_tok", 10),
        expert_ffn_hidden=config.count("moe_intermediate_size", 512),
        shared_experts=1 if shared else 0,
        shared_ffn_hidden=shared,
        shared_gate=shared > 0,
    )
    mixer = RecurrenceSpec(
        kind="gated-delta",
        heads=config.count("linear_num_value_heads", 32),
        head_dim=config.count("linear_value_head_dim", 128),
        state=config.count("linear_key_head_dim", 128),
        groups=config.count("linear_num_key_heads", 16),
        conv_width=config.count("linear_conv_kernel_dim", 4),
        chunk=64,  # of flash-linear-attention
    )
    biased = config.flag("attention_bias", False)
    return rotary(
        config,
        ffn_hidden=config.count("intermediate_size", 5120),
        head_dim=config.count("head_dim", 256),
        qk_norm=True,
        attention_gate=config.flag("attn_output_gate", True),
        attention_bias=biased,
        output_bias=biased,
        multi_token_heads=config.count(
            "mtp_num_hidden_layers", config.count("num_nextn_predict_layers", 0)
        ),
        pattern=pattern,
        recurrence=mixer if "M" in pattern else None,
        moe=moe,
        numerics={"routing_norm": 1.0 if config.flag("norm_topk_prob", True) else None},
    )


def _layers_and_interval(config: Config) -> tuple[int, int]:
    layers = config.count("num_hidden_layers")
    every = config.count("full_attention_interval", 4)
    if not 1 <= every <= layers:
        raise InvalidSpec(
            f"full_attention_interval={every} must be in 1 to num_hidden_layers = "
            f"{layers}"
        )
    return layers, every


def _every(config: Config, what: str, period: int, offset: int) -> tuple[int, int]:
    """(period, offset) of the layers that have *what*."""
    every = config.count(f"{what}_layer_period", period)
    first = config.count(f"{what}_layer_offset", offset)
    if every < 1:
        raise InvalidSpec(f"{what}_layer_period={every} must be at least 1")
    if not 0 <= first < every:
        raise InvalidSpec(
            f"{what}_layer_offset={first} must be in 0 to {what}_layer_period - 1 = "
            f"{every - 1}"
        )
    return every, first


def _jamba(config: Config) -> Read:
    hidden = config.count("hidden_size")
    attends, at = _every(config, "attn", 8, 4)
    routes, first = _every(config, "expert", 2, 1)
    _require_plain(config, "mamba_proj_bias", "sliding_window")
    if config.equals("mamba_dt_rank", "auto"):
        rank = -(-hidden // 16)
    else:
        rank = config.count("mamba_dt_rank", -(-hidden // 16))
    experts = config.count("num_experts", 16)
    width = config.count("intermediate_size")
    mixer = RecurrenceSpec(
        kind="mamba-1",
        heads=config.count("mamba_expand", 2) * hidden,
        head_dim=1,
        state=config.count("mamba_d_state", 16),
        conv_width=config.count("mamba_d_conv", 4),
        conv_bias=config.flag("mamba_conv_bias", True),
        dt_rank=rank,
        dt_norms=True,
    )
    moe = MoeSpec(
        experts=experts,
        experts_per_token=config.count("num_experts_per_tok", 2),
        expert_ffn_hidden=width,
        first_layer=first,
        every=routes,
    )
    heads = config.count("num_attention_heads")
    spec = DecoderSpec(
        layers=config.count("num_hidden_layers"),
        hidden=hidden,
        heads=heads,
        kv_heads=config.count("num_key_value_heads", 8),
        head_dim=config.head_dim(),
        vocab=config.count("vocab_size"),
        ffn_hidden=width,
        gated_mlp=True,
        activation=config.activation("hidden_act", "silu"),
        norm="rmsnorm",
        position="none",
        attention_bias=False,
        output_bias=False,
        mlp_bias=False,
        tied_embeddings=config.flag("tie_word_embeddings", False),
        pattern="M" * at + "*" + "M" * (attends - at - 1),
        recurrence=mixer,
        moe=moe if experts > 1 else None,
        numerics=numerics_of(config, rotation={"not_computed": ()}),
    )
    return spec, config.count("max_position_embeddings", 262144)


def _minimax(config: Config) -> Read:
    layers = config.count("num_hidden_layers")
    listed: list[Any] = config.get("attn_type_list", list, [])
    if any(one not in (_LIGHTNING, _SOFTMAX) for one in listed):
        raise config.unsupported("attn_type_list other than of 0 and 1")
    pattern = "".join("M*"[one] for one in listed) or layer_types(config, layers)
    if not pattern or "S" in pattern or (len(pattern) != layers):
        raise InvalidSpec(
            f"attn_type_list or layer_types must name all {layers} layers"
        )
    heads = config.count("num_attention_heads")
    head_dim = config.head_dim()
    mixer = RecurrenceSpec(
        kind="linear",
        heads=heads,
        head_dim=head_dim,
        state=head_dim,
        groups=heads,
        chunk=config.count("block_size", 256),
    )
    moe = MoeSpec(
        experts=config.count("num_local_experts"),
        experts_per_token=config.count("num_experts_per_tok", 2),
        expert_ffn_hidden=config.count("intermediate_size"),
    )
    numerics = _part(config, head_dim)
    return rotary(
        config,
        head_dim=head_dim,
        pattern=pattern,
        recurrence=mixer if "M" in pattern else None,
        moe=moe,
        theta=1e6,
        numerics=numerics,
    )


def _part(config: Config, head_dim: int) -> dict[str, Any]:
    """`rotary_dim`: how much of a head is turned."""
    turned = config.count("rotary_dim", head_dim)
    if turned == head_dim:
        return {}
    return {"not_computed": (f"rotary_dim {turned} of {head_dim}",)}


HYBRIDS: Final[Mapping[str, Callable[[Config], Read]]] = {
    "nemotron_h": _nemotron_h,
    "qwen3_next": _qwen3_next,
    "qwen3_5_moe": _qwen3_next,
    "qwen3_5_moe_text": _qwen3_next,
    "jamba": _jamba,
    "minimax": _minimax,
    "minimax_text_01": _minimax,
}
