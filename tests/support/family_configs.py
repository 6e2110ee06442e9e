"""Small configs of Hugging Face, and the parameters of the class that each is of.

The numbers are of transformers 5.24, built on torch's meta device.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

_SIZES: Final[dict[str, Any]] = {
    "hidden_size": 128,
    "num_hidden_layers": 6,
    "num_attention_heads": 8,
    "intermediate_size": 384,
    "vocab_size": 1000,
}
_NARROW: Final = {"num_key_value_heads": 2, "head_dim": 24}
_TABLE: Final = {"vocab_size": 1000, "hidden_size": 128}
_LAYERS: Final = {"num_hidden_layers": 6, "num_attention_heads": 8}
_T5: Final = {"vocab_size": 1000, "d_model": 128, "d_kv": 16, "d_ff": 256}
_IMAGES: Final = {
    "hidden_size": 128,
    "num_hidden_layers": 5,
    "num_attention_heads": 8,
    "intermediate_size": 384,
    "patch_size": 14,
}


@dataclass(frozen=True)
class Known:
    """A config's `keys`, its class, and how many parameters that has."""

    model_type: str
    class_name: str
    parameters: int
    keys: dict[str, Any] = field(default_factory=dict)

    @property
    def document(self) -> dict[str, Any]:
        return {"model_type": self.model_type, **self.keys}


KNOWN: Final = (
    Known("gemma", "GemmaForCausalLM", 1_383_040, {**_SIZES, **_NARROW}),
    Known("gemma2", "Gemma2ForCausalLM", 1_384_576, {**_SIZES, **_NARROW}),
    Known(
        "gemma3_text",
        "Gemma3ForCausalLM",
        3_060_512,
        {**_SIZES, **_NARROW, "num_hidden_layers": 14},
    ),
    Known("gpt_neox", "GPTNeoXForCausalLM", 1_248_512, _SIZES),
    Known(
        "gpt_neox",
        "GPTNeoXForCausalLM",
        1_248_512,
        {**_SIZES, "use_parallel_residual": False},
    ),
    Known(
        "opt",
        "OPTForCausalLM",
        1_382_912,
        {**_TABLE, **_LAYERS, "ffn_dim": 384, "word_embed_proj_dim": 128},
    ),
    Known("falcon", "FalconForCausalLM", 1_137_408, {**_TABLE, **_LAYERS}),
    Known(
        "falcon",
        "FalconForCausalLM",
        1_163_520,
        {**_TABLE, **_LAYERS, "new_decoder_architecture": True, "num_kv_heads": 2},
    ),
    Known(
        "falcon",
        "FalconForCausalLM",
        1_317_888,
        {
            **_TABLE,
            **_LAYERS,
            "alibi": True,
            "bias": True,
            "multi_query": False,
            "parallel_attn": False,
        },
    ),
    Known(
        "phi3",
        "Phi3ForCausalLM",
        1_437_312,
        {**_SIZES, "num_key_value_heads": 4, "pad_token_id": 0},
    ),
    Known("olmo2", "Olmo2ForCausalLM", 1_438_464, {**_SIZES, "num_key_value_heads": 4}),
    Known("olmo3", "Olmo3ForCausalLM", 1_438_464, {**_SIZES, "num_key_value_heads": 4}),
    Known(
        "bloom", "BloomForCausalLM", 1_318_144, {**_TABLE, "n_layer": 6, "n_head": 8}
    ),
    Known("mamba", "MambaForCausalLM", 827_776, {**_TABLE, "num_hidden_layers": 6}),
    Known(
        "mamba2",
        "Mamba2ForCausalLM",
        1_270_800,
        {
            **_TABLE,
            "num_hidden_layers": 6,
            "num_heads": 8,
            "head_dim": 32,
            "n_groups": 2,
        },
    ),
    Known(
        "falcon_mamba",
        "FalconMambaForCausalLM",
        827_776,
        {**_TABLE, "num_hidden_layers": 6},
    ),
    Known(
        "t5",
        "T5ForConditionalGeneration",
        1_245_056,
        {**_T5, "num_layers": 4, "num_decoder_layers": 3},
    ),
    Known("mt5", "MT5ForConditionalGeneration", 1_507_456, {**_T5, "num_layers": 4}),
    Known(
        "bert",
        "BertForMaskedLM",
        1_204_072,
        {**_SIZES, "architectures": ["BertForMaskedLM"]},
    ),
    Known("bert", "BertForPreTraining", 1_220_842, _SIZES),
    Known(
        "roberta",
        "RobertaForMaskedLM",
        1_204_200,
        {**_SIZES, "max_position_embeddings": 514, "type_vocab_size": 1},
    ),
    Known(
        "albert", "AlbertForPreTraining", 575_850, {**_SIZES, "num_hidden_groups": 2}
    ),
    Known(
        "albert",
        "AlbertForMaskedLM",
        393_704,
        {**_SIZES, "architectures": ["AlbertForMaskedLM"]},
    ),
    Known(
        "vit",
        "ViTForImageClassification",
        1_117_578,
        {
            **_IMAGES,
            "num_hidden_layers": 6,
            "patch_size": 16,
            "id2label": {str(one): str(one) for one in range(10)},
        },
    ),
    Known(
        "clip",
        "CLIPModel",
        1_111_297,
        {
            "projection_dim": 32,
            "text_config": {
                "hidden_size": 64,
                "num_hidden_layers": 3,
                "num_attention_heads": 4,
                "intermediate_size": 128,
                "vocab_size": 1000,
                "projection_dim": 32,
            },
            "vision_config": {
                **_IMAGES,
                "projection_dim": 32,
                "hidden_act": "quick_gelu",
            },
        },
    ),
    Known(
        "llava",
        "LlavaForConditionalGeneration",
        2_545_280,
        {
            "vision_config": {
                **_IMAGES,
                "model_type": "clip_vision_model",
                "image_size": 336,
            },
            "text_config": {
                "model_type": "llama",
                **_SIZES,
                "max_position_embeddings": 2048,
            },
        },
    ),
)
