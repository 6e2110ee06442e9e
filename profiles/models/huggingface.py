"""A Hugging Face `config.json` → `Model`.

Keys and their defaults are those of the `configuration_*.py` of transformers 4.5x.
"""

from __future__ import annotations

from collections.abc import Callable

from profiles.errors import InvalidSpec
from profiles.files import shown
from profiles.models.huggingface_moe import MIXTURES
from profiles.models.huggingface_rotary import (
    EXACT,
    Config,
    Read,
    qwen3,
    rotary,
    window_of,
)
from profiles.models.model_file import Model
from profiles.models.numerics import Numerics
from profiles.models.spec import DecoderSpec

LONGEST_DEFAULT = 8192  # a config gives the longest sequence served, not one trained


def is_config(document: object) -> bool:
    return isinstance(document, dict) and "model_type" in document


def parse_config(document: object, *, what: str, name: str) -> Model:
    """The model that a config describes, to be trained at up to 8192 tokens.

    Raises Unsupported for other model types, InvalidFile naming a missing or wrong
    key, InvalidSpec for sizes that cannot exist.
    """
    config = Config(document, what)
    kind = config.get("model_type", str)
    if kind not in _READERS:
        raise config.unsupported(
            f"model_type {shown(kind)}", f"supported: {', '.join(_READERS)}"
        )
    try:
        spec, longest = _READERS[kind](config)
        return Model(
            name=name,
            spec=spec,
            seq_len=min(longest, LONGEST_DEFAULT),
            source=what,
            notes="sequence and batch are assumed: a config does not give them",
        )
    except InvalidSpec as error:
        raise InvalidSpec(f"{what}: {error}") from error


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
        window=window_of(config, 4096),
    )


def _qwen2(config: Config) -> Read:
    windowed = config.flag("use_sliding_window", False)
    return rotary(
        config,
        attention_bias=True,
        window=window_of(config, 4096) if windowed else None,
    )


def _qwen3(config: Config) -> Read:
    return qwen3(config, head_dim=config.head_dim(128))


_READERS: dict[str, Callable[[Config], Read]] = {
    "gpt2": _gpt2,
    "llama": _llama,
    "mistral": _mistral,
    "qwen2": _qwen2,
    "qwen3": _qwen3,
    **MIXTURES,
}
