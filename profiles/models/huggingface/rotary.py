"""What most decoders of Hugging Face share: `rotary`, from the keys of a config.

What changes the loss and neither shapes nor prices goes to the spec's `numerics`: what
the runtime computes by its value, anything else by name, for `execute` to refuse.
Transformers 5 writes `rope_theta` and `rope_scaling` together, as `rope_parameters`.

The keys of a Hugging Face `config.json`, each checked as it is read.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from profiles.errors import InvalidFile, InvalidSpec, Unsupported
from profiles.files import shown
from profiles.models.spec import DecoderSpec, ModelSpec, Numerics, RopeScaling

# `ACT2FN` of transformers: names of three functions, of gelu with its approximations.
ACTIVATIONS: Final = {
    **dict.fromkeys(("gelu", "gelu_new", "gelu_fast", "gelu_accurate"), "gelu"),
    **dict.fromkeys(("gelu_python", "gelu_python_tanh", "gelu_pytorch_tanh"), "gelu"),
    **dict.fromkeys(("silu", "swish"), "silu"),
    "relu": "relu",
    "relu2": "relu2",
}
# Those of them that are the error function's, not its approximation by tanh.
EXACT: Final = ("gelu", "gelu_python")


class Config:
    """The keys of a config, each checked as it is read."""

    def __init__(
        self, document: object, what: str, assumed: list[str] | None = None
    ) -> None:
        self._keys: Mapping[str, Any] = document if isinstance(document, dict) else {}
        self._what = what
        self.assumed: list[str] = [] if assumed is None else assumed

    def __iter__(self) -> Iterator[str]:
        return iter(self._keys)

    def assume(self, what: str) -> None:
        """Note what the config does not say."""
        self.assumed.append(what)

    def asks(self, key: str) -> bool:
        """Whether *key* has a value that is not none, false or 0."""
        return bool(self._keys.get(key))

    def defaulting(self, **values: Any) -> Config:
        """The same config, with *values* for keys that it lacks."""
        return Config({**values, **self._keys}, self._what, self.assumed)

    @property
    def layers(self) -> int:
        """`num_hidden_layers`."""
        return int(self.count("num_hidden_layers"))

    def side(self, key: str, default: int) -> int:
        """The side of a square, a number or a pair of equal ones."""
        value = self._keys.get(key)
        if isinstance(value, list):
            if len(value) != 2 or value[0] != value[1]:
                raise self.unsupported(f"{key} {shown(value)}, which is no square")
            return int(Config({key: value[0]}, self._what).count(key))
        return int(self.count(key, default))

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

    def asked(self, key: str, default: bool) -> bool:
        """Whether a flag, or a number in its place, is set."""
        value = self._keys.get(key)
        return default if value is None else bool(value)

    def equals(self, key: str, value: str) -> bool:
        """Whether a word stands where else a number does."""
        return bool(self._keys.get(key) == value)

    def nullable(self, key: str, kind: type, default: Any) -> Any:
        """The value of *key*: a null is none at all, an absent one the default."""
        return self.get(key, kind, None if key in self._keys else default)

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
        return self.function(self.get(key, str, default), key)

    def function(self, name: str, key: str) -> str:
        """Our name of the function that stands under *key*."""
        if name not in ACTIVATIONS:
            raise self.unsupported(
                f"{key} {shown(name)}", f"known: {', '.join(ACTIVATIONS)}"
            )
        return ACTIVATIONS[name]

    def inside(self, key: str, *default: dict[str, Any]) -> Config:
        """The object that stands under *key*."""
        found = self.get(key, dict, *default)
        return Config(found, f"{self._what}: {key}", self.assumed)

    def __len__(self) -> int:
        return len(self._keys)

    @property
    def has_objects(self) -> bool:
        """Whether other objects stand in it."""
        return any(isinstance(value, dict) for value in self._keys.values())

    def has(self, key: str) -> bool:
        return key in self._keys

    def unsupported(
        self, feature: str, instead: str = "write a model file"
    ) -> Unsupported:
        return Unsupported(f"{self._what} has {feature}, not read yet; {instead}")


Read = tuple[ModelSpec, int]  # and the longest sequence

# `ROPE_INIT_FUNCTIONS`: other angles in a table that is made once, at the same cost.
ROTATIONS: Final = (
    *("default", "linear", "dynamic", "yarn", "longrope", "su", "llama3", "mrope"),
)
SCALINGS: Final = {  # those that are computed, with the keys that each needs
    "linear": ("factor",),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor"),
}


def rotation_of(config: Config, theta: float) -> dict[str, Any]:
    """Of the spec's numerics `rope_theta`, `rope_scaling` and what is `not_computed`;
    *theta* is the class's own.

    Raises Unsupported for a scaling that is not known.
    """
    rope = config.inside("rope_scaling", {}) or config.inside("rope_parameters", {})
    name = rope.get("rope_type", str, rope.get("type", str, "default"))
    if name not in ROTATIONS:
        raise rope.unsupported(
            f"rope_type {shown(name)}", f"known: {', '.join(ROTATIONS)}"
        )
    theta = config.get("rope_theta", float, theta)
    part = config.get("partial_rotary_factor", float, 1.0)
    part = rope.get("partial_rotary_factor", float, part)
    needed = SCALINGS.get(name, ())
    lacks = [key for key in needed if rope.get(key, float, None) is None]
    beyond = {
        f"partial_rotary_factor {part:g}": part != 1,
        "rope_parameters by layer type": rope.has_objects,
        f"rope_scaling {name}": name not in ("default", *SCALINGS),
        f"rope_scaling {name} without {', '.join(lacks)}": bool(lacks),
    }
    scaled = name in SCALINGS and not lacks
    return {
        "rope_theta": rope.get("rope_theta", float, theta),
        "rope_scaling": _scaling(config, rope, name) if scaled else None,
        "not_computed": tuple(what for what, true in beyond.items() if true),
    }


def _scaling(config: Config, rope: Config, name: str) -> RopeScaling:
    given = {key: rope.get(key, float) for key in SCALINGS[name]}
    if name == "llama3":
        longest = config.count("max_position_embeddings", None)
        longest = longest or config.count("max_seq_len", 2048)
        first = rope.count("original_max_position_embeddings", longest)
        given["original_positions"] = first
    return RopeScaling(kind=name, **given)


def numerics_of(
    config: Config,
    *,
    rotation: Mapping[str, Any],
    epsilon: float = 1e-6,
    not_computed: Sequence[str] = (),
    **differences: Any,
) -> Numerics:
    """What Llama and everything after it share: norms, the *rotation*, dropout of the
    attention; *epsilon* is the class's own, *differences* override."""
    shape: dict[str, Any] = {
        **rotation,
        "norm_epsilon": config.get("rms_norm_eps", float, epsilon),
        "exact_gelu": config.get("hidden_act", str, "silu") in EXACT,
        "attention_dropout": config.get("attention_dropout", float, 0.0),
        "balance": 0.0,
        "not_computed": (*rotation["not_computed"], *not_computed),
    }
    return Numerics(**{**shape, **differences})


def rotary(
    config: Config,
    *,
    numerics: Mapping[str, Any] | None = None,
    theta: float = 10000.0,
    **differences: Any,
) -> Read:
    """What Llama and everything after it share; *numerics* and other *differences*
    override, *theta* is the class's own base of the rotation."""
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
    turned = rotation_of(config, theta)
    shape["numerics"] = numerics_of(config, rotation=turned, **(numerics or {}))
    return DecoderSpec(**shape), config.count("max_position_embeddings")


def window_of(config: Config, default: int | None) -> int | None:
    """A null window is none at all; an absent one is the class's default."""
    return config.nullable("sliding_window", int, default)  # type: ignore[no-any-return]


LAYER_TYPES: Final = {
    "full_attention": "*",
    "sliding_attention": "S",
    "linear_attention": "M",
}


def layer_types(config: Config, layers: int, key: str = "layer_types") -> str:
    """The pattern that *key* names layer by layer; "" where it is left out."""
    kinds: list[Any] = config.get(key, list, [])
    foreign = [one for one in kinds if one not in LAYER_TYPES]
    if foreign:
        raise config.unsupported(
            f"{key} {shown(foreign[0])}", f"known: {', '.join(LAYER_TYPES)}"
        )
    if kinds and len(kinds) != layers:
        raise InvalidSpec(
            f"{key} names {len(kinds)} layers of num_hidden_layers={layers}"
        )
    return "".join(LAYER_TYPES[one] for one in kinds)


def windows(
    config: Config, window: int | None, from_layer: int | None = None
) -> dict[str, Any]:
    """Which layers look through the *window*, where some do not: by `layer_types`, or
    (*from_layer* is the class's default of it) from `max_window_layers` on."""
    layers = config.count("num_hidden_layers")
    pattern = layer_types(config, layers)
    if not pattern and window and from_layer is not None:
        first = min(max(config.count("max_window_layers", from_layer), 0), layers)
        pattern = "*" * first + "S" * (layers - first)
    if "M" in pattern:
        raise config.unsupported("layer_types 'linear_attention'")
    if "S" in pattern and not window:
        raise InvalidSpec("layer_types 'sliding_attention' needs sliding_window")
    if "S" not in pattern:  # in no layer, or in all that nothing is said of
        return {"window": None if pattern else window}
    if "*" not in pattern:
        return {"window": window}
    return {"window": window, "pattern": pattern}


def qwen3(config: Config, **differences: Any) -> Read:
    """A Qwen3: its queries and keys are normalised."""
    biased = config.flag("attention_bias", False)
    windowed = config.flag("use_sliding_window", False)
    return rotary(
        config,
        qk_norm=True,
        attention_bias=biased,
        output_bias=biased,
        **windows(config, window_of(config, 4096) if windowed else None, from_layer=28),
        **differences,
    )
