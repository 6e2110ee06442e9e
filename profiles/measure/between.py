"""What a rank computes between two things that are timed: products of matrices."""

from __future__ import annotations

from collections.abc import Callable

from profiles.measure.arena import Arena
from profiles.measure.tensors import Tensor

SHORT = 384  # 2·384³ FLOPs are some 1.2 ms of a core: what tp has between collectives
LONG = 512  # some 3 ms: half a layer
PRODUCTS = 2


def between(arena: Arena, side: int = SHORT) -> Callable[[], object]:
    """A function that multiplies matrices of *side* which no cache holds."""

    def compute() -> list[Tensor]:
        return [
            arena.deal(side, side) @ arena.deal(side, side) for _ in range(PRODUCTS)
        ]

    return compute
