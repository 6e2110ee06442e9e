"""A Hugging Face `config.json` → `Model`.

Keys and their defaults are those of the `configuration_*.py` of transformers 4.5x.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from profiles.documents import shown
from profiles.errors import InvalidFile, InvalidSpec, Unsupported
from profiles.models.model import Model
from profiles.models.spec import DecoderSpec, MlaSpec, MoeSpec

LONGEST_DEFAULT = 8192  # a config gives the longest sequence served, not one trained


def is_config(document: object) -> bool:
    return isinstance(document, dict) and "model_type" in document


def parse_config(document: object, *, what: str, name: str) -> Model:
    """The model that a config describes, to be trained at up to 8192 tokens.

    Raises Unsupported for other model types, InvalidFile naming a missing or wrong
    key, InvalidSpec for sizes that cannot exist.
    """
    config = _Config(document, what)
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


class _Config:
    """The keys of a config, each checked as it is read."""

    def __init__(self, document: object, what: str) -> None:
        self._keys: Mapping[str, Any] = document if isinstance(document, dict) else {}
        self._what = what

    def get(self, key: str, kind: type, *default: Any) -> Any:
        """The value of *key*; the default stands in for an absent or null one."""
        value = self._keys.get(key)
        if value is None and default:
            return default[0]
        if value is None:
            raise InvalidFile(f"{self._what} lacks {key}")
        if kind is float and type(value) is int:
            return float(value)
        if type(value) is not kind:
            raise InvalidFile(
                f"{self._what}: {key} must be {kind.__name__}, "
                f"got {type(value).__name__}"
            )
        return value

    def count(self, key: str, *default: int | None) -> Any:
        return self.get(key, int, *default)

    def flag(self, key: str, default: bool) -> bool:
        return bool(self.get(key, bool, default))

    def head_dim(self, default: int | None = None) -> int:
        """`head_dim`, or hidden / heads where it is left out."""
        found = self.count("head_dim", default)
        if found is None:
            hidden, heads = self.count("hidden_size"), self.count("num_attention_heads")
            if heads < 1 or hidden % heads:
                raise InvalidSpec(
                    f"num_attention_heads={heads} does not divide hidden_size={hidden}"
                )
            found = hidden // heads
        return int(found)

    def has(self, key: str) -> bool:
        return key in self._keys

    def unsupported(
        self, feature: str, instead: str = "write a model file"
    ) -> Unsupported:
        return Unsupported(f"{self._what} has {feature}, not read yet; {instead}")


_Read = tuple[DecoderSpec, int]


def _gpt2(config: _Config) -> _Read:
    hidden, heads = config.count("n_embd"), config.count("n_head")
    if heads < 1 or hidden % heads:
        raise InvalidSpec(f"n_head={heads} does not divide n_embd={hidden}")
    longest = config.count("n_positions", config.count("n_ctx", 1024))
    spec = DecoderSpec(
        layers=config.count("n_layer"),
        hidden=hidden,
        heads=heads,
        kv_heads=heads,
        head_dim=hidden // heads,
        vocab=config.count("vocab_size"),
        ffn_hidden=config.count("n_inner", 4 * hidden),
        activation=config.get("activation_function", str, "gelu_new"),
        max_positions=longest,
        tied_embeddings=config.flag("tie_word_embeddings", True),
        dropout=config.get("resid_pdrop", float, 0.1),
    )
    return spec, longest


def _rotary(config: _Config, **differences: Any) -> _Read:
    """What Llama and everything after it share; *differences* override."""
    heads = config.count("num_attention_heads")
    shape: dict[str, Any] = {
        "layers": config.count("num_hidden_layers"),
        "hidden": config.count("hidden_size"),
        "heads": heads,
        "kv_heads": config.count("num_key_value_heads", heads),
        "vocab": config.count("vocab_size"),
        "ffn_hidden": config.count("intermediate_size"),
        "gated_mlp": True,
        "activation": config.get("hidden_act", str, "silu"),
        "norm": "rmsnorm",
        "position": "rotary",
        "attention_bias": False,
        "output_bias": False,
        "mlp_bias": False,
        "tied_embeddings": config.flag("tie_word_embeddings", False),
    }
    shape.update(differences)
    if "head_dim" not in shape:
        shape["head_dim"] = config.head_dim()
    return DecoderSpec(**shape), config.count("max_position_embeddings")


def _llama(config: _Config) -> _Read:
    biased = config.flag("attention_bias", False)
    return _rotary(
        config,
        attention_bias=biased,
        output_bias=biased,
        mlp_bias=config.flag("mlp_bias", False),
    )


def _window(config: _Config, default: int | None) -> int | None:
    """A null window is none at all; an absent one is the class's default."""
    if not config.has("sliding_window"):
        return default
    return config.count("sliding_window", None)  # type: ignore[no-any-return]


def _mistral(config: _Config) -> _Read:
    return _rotary(
        config,
        kv_heads=config.count("num_key_value_heads", 8),
        window=_window(config, 4096),
    )


def _mixtral(config: _Config) -> _Read:
    moe = MoeSpec(
        experts=config.count("num_local_experts"),
        experts_per_token=config.count("num_experts_per_tok"),
        expert_ffn_hidden=config.count("intermediate_size"),
    )
    return _rotary(
        config,
        kv_heads=config.count("num_key_value_heads", 8),
        window=_window(config, None),
        moe=moe,
    )


def _qwen2(config: _Config) -> _Read:
    windowed = config.flag("use_sliding_window", False)
    return _rotary(
        config, attention_bias=True, window=_window(config, 4096) if windowed else None
    )


def _qwen3(config: _Config, **differences: Any) -> _Read:
    biased = config.flag("attention_bias", False)
    windowed = config.flag("use_sliding_window", False)
    return _rotary(
        config,
        head_dim=config.head_dim(128),
        qk_norm=True,
        attention_bias=biased,
        output_bias=biased,
        window=_window(config, 4096) if windowed else None,
        **differences,
    )


def _qwen3_moe(config: _Config) -> _Read:
    dense: list[Any] = config.get("mlp_only_layers", list, [])
    step = config.count("decoder_sparse_step", 1)
    leading = len(dense)
    if dense != list(range(leading)) or (dense and step != 1):
        raise config.unsupported(
            "mlp_only_layers that are not the first ones (or beside a "
            "decoder_sparse_step)"
        )
    moe = MoeSpec(
        experts=config.count("num_experts"),
        experts_per_token=config.count("num_experts_per_tok"),
        expert_ffn_hidden=config.count("moe_intermediate_size"),
        first_layer=leading or step - 1,
        every=step,
    )
    return _qwen3(config, moe=moe)


def _deepseek_v3(config: _Config) -> _Read:
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
    moe = MoeSpec(
        experts=config.count("n_routed_experts"),
        experts_per_token=config.count("num_experts_per_tok"),
        expert_ffn_hidden=config.count("moe_intermediate_size"),
        shared_experts=config.count("n_shared_experts", 0),
        shared_ffn_hidden=config.count("moe_intermediate_size"),
        first_layer=first,
        every=every,
        router_groups=config.count("n_group", 1),
    )
    return _rotary(
        config,
        head_dim=mla.nope_head_dim,
        multi_token_heads=config.count("num_nextn_predict_layers", 0),
        mla=mla,
        moe=moe,
    )


_READERS: dict[str, Callable[[_Config], _Read]] = {
    "gpt2": _gpt2,
    "llama": _llama,
    "mistral": _mistral,
    "mixtral": _mixtral,
    "qwen2": _qwen2,
    "qwen3": _qwen3,
    "qwen3_moe": _qwen3_moe,
    "deepseek_v3": _deepseek_v3,
}
