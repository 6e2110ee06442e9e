"""Products of 8-bit operands, written once: what is timed is what trained layers call.

    forward           (rows, contracted) · (columns, contracted)ᵀ
    backward-input    (rows, columns) · (contracted, columns)ᵀ
    backward-weight   (columns, rows) · (contracted, rows)ᵀ

Of each pass the product alone is timed, operands being there: making them is bytes,
which are priced. What was quantised just now is in the last cache, if it is small.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

from profiles.measure.timing.buffers import Arena
from profiles.measure.timing.clock import Clock
from profiles.measure.timing.kernel import Kernel, Seconds
from profiles.measure.timing.tasks import (
    BACKWARD_INPUT,
    BACKWARD_WEIGHT,
    FORWARD,
    DType,
    Operation,
    Tensor,
)

WHOLE = 16  # elements: what CUDA asks of the sides of both matrices
Pair = tuple[Tensor, Tensor]


def scaled_product(
    left: Tensor,
    right: Tensor,
    scales: tuple[Tensor, Tensor],
    bias: Tensor | None = None,
    *,
    made: DType,
    exact: bool,
) -> Tensor:
    """(m, k) times (n, k) transposed, times both *scales*, in the type *made*.

    *exact* sums are in 32 bits throughout, others in whatever the device is faster in:
    forward ones may be, those of gradients not (as in Transformer Engine's recipe).
    """
    import torch

    return torch._scaled_mm(
        left,
        right.t(),
        *scales,
        bias=bias,
        out_dtype=made,
        use_fast_accum=not exact,
    )


@final
class EightBitProduct(Kernel):
    """The three products of an *operation*; of experts those of each, one by one."""

    def __init__(
        self, operation: Operation, arena: Arena, cache_bytes: float, made: DType
    ) -> None:
        self.sizes = _sizes(operation)
        self.arena, self.cache_bytes, self.made = arena, cache_bytes, made

    def visit(self, clock: Clock, calls: int) -> Seconds:
        import torch

        one = torch.ones((), device=self.arena.block.device)
        seconds = {}
        for direction in (FORWARD, BACKWARD_INPUT, BACKWARD_WEIGHT):
            pairs = [pair for _ in range(calls) for pair in self.operands(direction)]
            self.arena.forget(self.cache_bytes)
            for pair in pairs:
                for operand in pair:
                    operand.view(torch.uint8).sum()
            exact = direction != FORWARD
            seconds[direction] = clock.timed(
                lambda pairs=pairs, exact=exact: [  # type: ignore[misc]
                    scaled_product(a, b, (one, one), made=self.made, exact=exact)
                    for a, b in pairs
                ]
            )
        return {name: total / calls for name, total in seconds.items()}

    def operands(self, direction: str) -> list[Pair]:
        """Both operands of each product: gradients, which come first, in e5m2."""
        import torch

        found = []
        for rows, columns, contracted in self.sizes:
            first, second, over = {
                FORWARD: (rows, columns, contracted),
                BACKWARD_INPUT: (rows, contracted, columns),
                BACKWARD_WEIGHT: (columns, contracted, rows),
            }[direction]
            left, right = self.arena.deal(first, over), self.arena.deal(second, over)
            if direction != FORWARD:
                left = left.view(torch.float8_e5m2)
            found.append((left, right))
        return found


def _sizes(operation: Operation) -> Sequence[tuple[int, int, int]]:
    """Rows, columns and contracted of each product, in whole blocks."""
    if operation.kind == "matmul":
        rows, columns, contracted = operation.shape
        each = [rows]
    else:
        rows, experts, columns, contracted = operation.shape
        each = [(rows + place) // experts for place in range(experts)]
    return [(_up(one), _up(columns), _up(contracted)) for one in each]


def _up(size: int) -> int:
    return -(-size // WHOLE) * WHOLE
