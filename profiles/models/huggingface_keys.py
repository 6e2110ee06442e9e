"""The keys of a Hugging Face `config.json`, each checked as it is read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from profiles.documents import shown
from profiles.errors import InvalidFile, InvalidSpec, Unsupported

# `ACT2FN` of transformers: names of three functions, of gelu with its approximations.
ACTIVATIONS: Final = {
    **dict.fromkeys(("gelu", "gelu_new", "gelu_fast", "gelu_accurate"), "gelu"),
    **dict.fromkeys(("gelu_python", "gelu_python_tanh", "gelu_pytorch_tanh"), "gelu"),
    **dict.fromkeys(("silu", "swish"), "silu"),
    "relu": "relu",
}
# Those of them that are the error function's, not its approximation by tanh.
EXACT: Final = ("gelu", "gelu_python")


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

    def asked(self, key: str, default: bool) -> bool:
        """Whether a flag, or a number in its place, is set."""
        value = self._keys.get(key)
        return default if value is None else bool(value)

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
        name = self.get(key, str, default)
        if name not in ACTIVATIONS:
            raise self.unsupported(
                f"{key} {shown(name)}", f"known: {', '.join(ACTIVATIONS)}"
            )
        return ACTIVATIONS[name]

    def inside(self, key: str, *default: dict[str, Any]) -> Config:
        """The object that stands under *key*."""
        return Config(self.get(key, dict, *default), f"{self._what}: {key}")

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
