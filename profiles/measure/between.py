"""What a rank computes between two things that are timed: products of matrices."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from profiles.measure.arena import Arena
from profiles.measure.tensors import Tensor

LONG: Final = 512  # 2·512³ FLOPs a product: some 3 ms of a core
SHORT: Final = 288  # some 0.5 ms
PRODUCTS = 2


def between(arena: Arena, side: int = LONG, turns: float = 1.0) -> Callable[[], object]:
    """A function that multiplies matrices of *side* which no cache holds: fewer, where
    ranks take *turns*, so that it lasts as long."""
    products = max(round(PRODUCTS / turns), 1)

    def compute() -> list[Tensor]:
        return [
            arena.deal(side, side) @ arena.deal(side, side) for _ in range(products)
        ]

    return compute
