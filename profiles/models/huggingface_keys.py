"""The keys of a Hugging Face `config.json`, and what most decoders share of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from profiles.documents import shown
from profiles.errors import InvalidFile, InvalidSpec, Unsupported
from profiles.models.spec import DecoderSpec

Read = tuple[DecoderSpec, int]  # and the longest sequence

# `ACT2FN` of transformers: names of three functions, of gelu with its approximations.
ACTIVATIONS: Final = {
    **dict.fromkeys(("gelu", "gelu_new", "gelu_fast", "gelu_accurate"), "gelu"),
    **dict.fromkeys(("gelu_python", "gelu_python_tanh", "gelu_pytorch_tanh"), "gelu"),
    **dict.fromkeys(("silu", "swish"), "silu"),
    "relu": "relu",
}
# `ROPE_INIT_FUNCTIONS`: other angles in a table that is made once, at the same cost.
ROTATIONS: Final = (
    *("default", "linear", "dynamic", "yarn", "longrope", "su", "llama3", "mrope"),
)


class Config:
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

    def activation(self, key: str, default: str) -> str:
        """The function between the products of the MLP, by our name; raises
        Unsupported for one that no MLP here has."""
        name = self.get(key, str, default)
        if name not in ACTIVATIONS:
            raise self.unsupported(
                f"{key} {shown(name)}", f"known: {', '.join(ACTIVATIONS)}"
            )
        return ACTIVATIONS[name]

    def require_known_rotation(self) -> None:
        """Raise Unsupported for a scaling of the rotation that is not known; known
        ones, of which nothing is kept, cost what none does."""
        for key in ("rope_scaling", "rope_parameters"):
            rope = Config(self.get(key, dict, {}), f"{self._what}: {key}")
            name = rope.get("rope_type", str, rope.get("type", str, "default"))
            if name not in ROTATIONS:
                raise rope.unsupported(
                    f"rope_type {shown(name)}", f"known: {', '.join(ROTATIONS)}"
                )

    def inside(self, key: str) -> Config:
        """The object that stands under *key*."""
        return Config(self.get(key, dict), f"{self._what}: {key}")

    def has(self, key: str) -> bool:
        return key in self._keys

    def unsupported(
        self, feature: str, instead: str = "write a model file"
    ) -> Unsupported:
        return Unsupported(f"{self._what} has {feature}, not read yet; {instead}")


def rotary(config: Config, **differences: Any) -> Read:
    """What Llama and everything after it share; *differences* override."""
    config.require_known_rotation()
    heads = config.count("num_attention_heads")
    shape: dict[str, Any] = {
        "layers": config.count("num_hidden_layers"),
        "hidden": config.count("hidden_size"),
        "heads": heads,
        "kv_heads": config.count("num_key_value_heads", heads),
        "vocab": config.count("vocab_size"),
        "ffn_hidden": config.count("intermediate_size"),
        "gated_mlp": True,
        "activation": config.activation("hidden_act", "silu"),
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


def window_of(config: Config, default: int | None) -> int | None:
    """A null window is none at all; an absent one is the class's default."""
    if not config.has("sliding_window"):
        return default
    return config.count("sliding_window", None)  # type: ignore[no-any-return]


def qwen3(config: Config, **differences: Any) -> Read:
    """A Qwen3: its queries and keys are normalised."""
    biased = config.flag("attention_bias", False)
    windowed = config.flag("use_sliding_window", False)
    return rotary(
        config,
        head_dim=config.head_dim(128),
        qk_norm=True,
        attention_bias=biased,
        output_bias=biased,
        window=window_of(config, 4096) if windowed else None,
        **differences,
    )
