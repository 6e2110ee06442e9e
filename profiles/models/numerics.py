"""`Numerics`: what a decoder computes beside its shapes, at no price of its own."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from math import isfinite
from typing import Any, Final

from profiles.errors import InvalidSpec

SCALINGS = ("linear", "llama3")
ROUTINGS = ("softmax", "sigmoid")


@dataclass(frozen=True, slots=True, kw_only=True)
class RopeScaling:
    """Rotary frequencies of a longer context than was trained first.

    linear   all are divided by `factor` (Chen et al., arXiv 2306.15595, section 2)
    llama3   those whose wave is longer than `original_positions / low_freq_factor`
             are, those shorter than `original_positions / high_freq_factor` are not,
             and between them it goes over (`ROPE_INIT_FUNCTIONS` of transformers)
    """

    kind: str
    factor: float
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_positions: int = 8192

    def __post_init__(self) -> None:
        if self.kind not in SCALINGS:
            raise InvalidSpec(
                f"rope_scaling {self.kind!r} is not one of {', '.join(SCALINGS)}"
            )
        for name in ("factor", "low_freq_factor", "high_freq_factor"):
            _above_zero(self, name)
        if not 1 <= self.original_positions <= 10**9:
            raise InvalidSpec(
                "original_positions must be between 1 and 10^9, got "
                f"{self.original_positions}"
            )
        if self.low_freq_factor >= self.high_freq_factor:
            raise InvalidSpec(
                f"low_freq_factor={self.low_freq_factor:g} must be below "
                f"high_freq_factor={self.high_freq_factor:g}"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Numerics:
    """Constants and choices that change the loss and neither shapes nor prices.

    The defaults are what the catalogue's models are trained with. `not_computed` names
    what a configuration asks for beyond them: it is priced without, and not trained.
    """

    norm_epsilon: float = 1e-5
    exact_gelu: bool = False  # by erf; else its tanh approximation
    rope_theta: float = 10000.0
    rope_scaling: RopeScaling | None = None
    unrotated_every: int = 0  # each so manieth layer is not turned (Llama 4)
    head_rms_norm: bool = False  # of turned queries and keys, no weights (Llama 4)
    qkv_clip: float | None = (
        None  # queries, keys and values are at most so large (DBRX)
    )
    attention_dropout: float = 0.0
    embedding_dropout: float | None = None  # None: as of the residuals
    routing: str = "softmax"  # or sigmoid, of each expert's score by itself
    # p of the norm by which a token's weights are divided; None: they stay as they are
    routing_norm: float | None = 1.0
    weighted_input: bool = (
        False  # weights multiply what experts take, not what they make
    )
    balance: float = 0.01  # α of the loss that keeps experts evenly busy
    longest: int | None = (
        None  # tokens up to which attention is plain (Llama 4's chunks)
    )
    not_computed: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name in (
            "norm_epsilon",
            "attention_dropout",
            "embedding_dropout",
            "balance",
        ):
            value = getattr(self, name)
            if value is not None and not 0 <= value < 1:
                raise InvalidSpec(f"{name} must be in [0, 1), got {value:g}")
        for name in ("rope_theta", "qkv_clip", "routing_norm"):
            if getattr(self, name) is not None:
                _above_zero(self, name)
        if self.routing not in ROUTINGS:
            raise InvalidSpec(
                f"routing={self.routing!r} is not one of {', '.join(ROUTINGS)}"
            )
        if not 0 <= self.unrotated_every <= 10**9:
            raise InvalidSpec(
                "unrotated_every must be between 0 and 10^9, got "
                f"{self.unrotated_every}"
            )
        if self.longest is not None and self.longest < 1:
            raise InvalidSpec(f"longest must be at least 1, got {self.longest}")

    def turns(self, layer: int) -> bool:
        """Whether the numbered *layer* of a rotary decoder turns queries and keys.

        >>> [Numerics(unrotated_every=4).turns(layer) for layer in range(4)]
        [True, True, True, False]
        """
        return not self.unrotated_every or (layer + 1) % self.unrotated_every > 0

    @property
    def document(self) -> dict[str, Any]:
        """What differs from the defaults, as JSON values."""
        usual = asdict(USUAL)
        return {
            name: list(value) if isinstance(value, tuple) else value
            for name, value in asdict(self).items()
            if value != usual[name]
        }


def _above_zero(one: object, name: str) -> None:
    value = getattr(one, name)
    if not (isfinite(value) and value > 0):
        raise InvalidSpec(f"{name} must be above 0, got {value:g}")


USUAL: Final = Numerics()
