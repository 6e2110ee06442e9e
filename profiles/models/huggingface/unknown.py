"""A config of an unknown architecture that has the keys of a decoder.

It is read as the decoder that its keys suggest, and says what was assumed:

    rms_norm_eps           a Llama: RMSNorm, gated MLP, rotary positions, no biases
    layer_norm_eps …       a GPT: LayerNorm, plain MLP, biases; rotary where a key
                           speaks of rope, else learned positions
    num_experts …          experts in every layer, by the usual keys
"""

from __future__ import annotations

from typing import Any, Final

from profiles.files import shown
from profiles.models.huggingface.rotary import Config, Read, rotary
from profiles.models.spec import MoeSpec

NEEDED: Final = (
    *("hidden_size", "num_hidden_layers", "num_attention_heads"),
    *("vocab_size", "intermediate_size"),
)
EXPERTS: Final = ("num_experts", "num_local_experts", "n_routed_experts")
OTHERWISE: Final = {  # keys of what none of these decoders has
    "kv_lora_rank": "latent attention",
    "ssm_state_size": "a recurrence",
    "state_size": "a recurrence",
    "is_encoder_decoder": "an encoder and a decoder",
    "vision_config": "a vision encoder",
    "layer_types": "layers of several kinds",
}


def reads(config: Config) -> bool:
    """Whether *config* has the keys of a decoder, and none of anything else."""
    return all(map(config.has, NEEDED)) and not any(map(config.asks, OTHERWISE))


def unknown(config: Config) -> Read:
    """The decoder that the keys suggest."""
    rms = config.has("rms_norm_eps")
    turned = rms or any(key.startswith("rope") for key in config)
    experts = next((key for key in EXPERTS if config.asks(key)), None)
    longest = config.count("max_position_embeddings", 2048)
    shape: dict[str, Any] = {}
    if not rms:
        shape = {
            "norm": "layernorm",
            "gated_mlp": False,
            "attention_bias": True,
            "output_bias": True,
            "mlp_bias": True,
            "position": "rotary" if turned else "learned",
            "max_positions": 0 if turned else longest,
            "activation": config.activation("hidden_act", "gelu"),
        }
    words = ["RMSNorm, a gated MLP and no biases" if rms else "LayerNorm and biases"]
    words.append(f"{'rotary' if turned else 'learned'} positions")
    if experts is not None:
        width = "moe_intermediate_size"
        width = width if config.has(width) else "intermediate_size"
        shape["moe"] = MoeSpec(
            experts=config.count(experts),
            experts_per_token=config.count("num_experts_per_tok"),
            expert_ffn_hidden=config.count(width),
        )
        words.append(f"experts in every layer ({experts}, {width})")
    kind = config.get("model_type", str)
    config.assume(
        f"model_type {shown(kind)} is not known: a decoder of its sizes, with "
        f"{', '.join(words)}"
    )
    spec, _ = rotary(config.defaulting(max_position_embeddings=longest), **shape)
    return spec, longest
