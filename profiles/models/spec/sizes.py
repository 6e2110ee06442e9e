"""What specs of all families have in common: sizes, checked as they are made."""

from __future__ import annotations

from dataclasses import fields
from math import isfinite

from profiles.errors import InvalidSpec
from profiles.limits import require


class Sized:
    """Whole numbers of a spec are at least 1, or 0 where that is their default; layers
    are fewer than other sizes, since each takes room in every graph and layout."""

    def __post_init__(self) -> None:
        for one in fields(self):  # type: ignore[arg-type]
            value = getattr(self, one.name)
            counts = one.type in ("int", "int | None") and value is not None
            if counts and not value == one.default == 0:
                require("layers" if one.name in _LAYERS else "size", value, one.name)


class PlainTransformer(Sized):
    """Layers as of the first transformers: a key-value head a head, layer norms and an
    MLP of two products, all with biases."""

    hidden: int
    heads: int

    def __post_init__(self) -> None:
        Sized.__post_init__(self)
        if self.hidden % self.heads:
            raise InvalidSpec(
                f"heads={self.heads} does not divide hidden={self.hidden}"
            )

    @property
    def kv_heads(self) -> int:
        return self.heads

    @property
    def head_dim(self) -> int:
        return self.hidden // self.heads

    @property
    def norm(self) -> str:
        return "layernorm"

    @property
    def norm_bias(self) -> bool:
        return True

    @property
    def gated_mlp(self) -> bool:
        return False

    @property
    def mlp_bias(self) -> bool:
        return True


_LAYERS = ("layers", "encoder_layers", "decoder_layers", "multi_token_heads")


def one_of(spec: object, name: str, allowed: tuple[str, ...]) -> None:
    value = getattr(spec, name)
    if value not in allowed:
        raise InvalidSpec(f"{name}={value!r} is not one of {', '.join(allowed)}")


def above_zero(one: object, name: str) -> None:
    value = getattr(one, name)
    if not (isfinite(value) and value > 0):
        raise InvalidSpec(f"{name} must be above 0, got {value:g}")


def share(spec: object, name: str) -> None:
    """Raise InvalidSpec unless a field of *spec* is in [0, 1)."""
    value = getattr(spec, name)
    if not 0 <= value < 1:
        raise InvalidSpec(f"{name} must be in [0, 1), got {value:g}")
