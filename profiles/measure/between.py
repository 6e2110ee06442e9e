"""What a rank computes between two things that are timed: products of matrices."""

from __future__ import annotations

from collections.abc import Callable

from profiles.measure.arena import Arena
from profiles.measure.tensors import Tensor

SIDE = 512  # 2·512³ FLOPs: some 3 ms of a core
PRODUCTS = 2


def between(arena: Arena) -> Callable[[], object]:
    """A function that multiplies matrices which no cache holds."""

    def compute() -> list[Tensor]:
        return [
            arena.deal(SIDE, SIDE) @ arena.deal(SIDE, SIDE) for _ in range(PRODUCTS)
        ]

    return compute
