"""`Adapters`: low-rank adapters, all that is trained of a model (Hu et al., 2021)."""

from __future__ import annotations

from dataclasses import dataclass

from profiles.errors import InvalidSpec

LINEAR_LAYERS = ("qkv", "projection", "mlp_up", "mlp_down")
ATTENTION = ("qkv", "projection")
QUERY_KEY_VALUE = ("qkv",)


@dataclass(frozen=True, slots=True, kw_only=True)
class Adapters:
    """Beside each matrix product in *targets*, by operator name, two narrow ones:
    the input → `rank` → the output. Every other weight is frozen."""

    rank: int
    targets: tuple[str, ...] = LINEAR_LAYERS

    def __post_init__(self) -> None:
        if self.rank < 1 or not self.targets:
            raise InvalidSpec(
                f"adapters have a rank of at least 1 and at least one target, got "
                f"rank {self.rank} on {', '.join(self.targets) or 'none'}"
            )
