"""`Kernel`: one operator made ready to be timed, in all its passes.

Products of 8-bit operands are written once: what is timed is what trained layers call.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, final

from profiles.measure.timing.clock import Clock
from profiles.measure.timing.operands import Arena
from profiles.measure.timing.tasks import (
    BACKWARD_INPUT,
    BACKWARD_WEIGHT,
    FORWARD,
    DType,
    Operands,
    Operation,
    Tensor,
)
from profiles.units import MS

# Code, its tables and the engine that no cache holds cost some 0.1 ms: in training the
# layers before have brought them. What takes longer than this does not notice.
BRIEF_S = 10 * MS

Function = Callable[..., Any]
Seconds = dict[str, float]


class Kernel(ABC):
    """Makes *calls* calls of an operator and times them, pass by pass."""

    lasting = False

    @abstractmethod
    def visit(self, clock: Clock, calls: int) -> Seconds:
        """Seconds a call of each pass, by direction."""


@final
class Layer(Kernel):
    """*function* of *operands* and its gradients, as eager PyTorch trains it.

    The first *activations* operands come from other operators, the rest are there; all
    is done *within* a context.
    *passes* names the backward passes and which operands each makes gradients for.
    All calls go through the autograd engine together, as the operators of a model do,
    so that its fixed cost is shared among them. Before each pass the caches forget
    all but what training has just made: the first operand, or the gradient. One call on
    operands of its own then brings the code back, if a call is brief.
    """

    def __init__(
        self,
        function: Function,
        operands: Callable[[], Operands],
        passes: Mapping[str, tuple[int, ...]],
        gradient: Callable[[Tensor], Tensor],
        arena: Arena,
        cache_bytes: float,
        activations: int = 1,
        within: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> None:
        self.function, self.operands = function, operands
        self.activations, self.within = activations, within
        self.passes, self.gradient = passes, gradient
        self.arena, self.cache_bytes = arena, cache_bytes
        self.brief = True

    def visit(self, clock: Clock, calls: int) -> Seconds:
        with self.within():
            seconds = self._visited(clock, calls)
        self.brief = max(seconds.values()) < BRIEF_S
        return seconds

    def _visited(self, clock: Clock, calls: int) -> Seconds:
        rehearsed = [self.operands() for _ in range(self.brief)]
        sets = [self.operands() for _ in range(calls)]
        self._forget([one[0] for one in sets])
        early, made = self._forward(rehearsed), list[Tensor]()
        seconds = {FORWARD: clock.timed(lambda: made.extend(self._forward(sets)))}
        if not self.passes:
            return {FORWARD: seconds[FORWARD] / calls}
        gradients = [self.gradient(one) for one in made]
        self._forget(gradients)
        last = len(self.passes) - 1
        for place, (direction, wanted) in enumerate(self.passes.items()):
            keep = place < last
            if early:
                first = gradients[: len(early)]
                self._backward(rehearsed, early, first, wanted, keep)
            seconds[direction] = clock.timed(
                lambda wanted=wanted, keep=keep: self._backward(  # type: ignore[misc]
                    sets, made, gradients, wanted, keep
                )
            )
        return {name: value / calls for name, value in seconds.items()}

    def parameters(self, operands: Operands) -> list[Tensor]:
        """What is there before and after: all but the activations that come in."""
        return [one for one in operands[self.activations :] if hasattr(one, "data_ptr")]

    def _forward(self, sets: Sequence[Operands]) -> list[Tensor]:
        made = [self.function(*operands) for operands in sets]
        if made and isinstance(made[0], tuple):
            return [part for whole in made for part in whole]
        return made

    def _backward(
        self,
        sets: Sequence[Operands],
        made: Sequence[Tensor],
        gradients: Sequence[Tensor],
        wanted: tuple[int, ...],
        keep: bool,
    ) -> object:
        import torch

        inputs = [one[place] for one in sets for place in wanted]
        return torch.autograd.grad(made, inputs, gradients, retain_graph=keep)

    def _forget(self, fresh: Sequence[Tensor]) -> None:
        self.arena.forget(self.cache_bytes)
        for one in fresh:
            if one.is_floating_point():
                one.detach().sum()


@final
class Plain(Kernel):
    """*function* of operands that nobody asks a gradient for, by one direction.

    `lasting` ones are too large to be made again each round: they come in *function*.
    """

    def __init__(
        self,
        function: Function,
        operands: Callable[[], Operands],
        direction: str,
        *,
        lasting: bool = False,
    ) -> None:
        self.function, self.operands = function, operands
        self.direction, self.lasting = direction, lasting

    def visit(self, clock: Clock, calls: int) -> Seconds:
        import torch

        sets = [self.operands() for _ in range(calls)]
        with torch.no_grad():
            total_s = clock.timed(lambda: [self.function(*one) for one in sets])
        return {self.direction: total_s / calls}


def saved_bytes(kernel: Kernel) -> float | None:
    """Bytes that one forward call saved, without its parameters; None for others.

    Two saved views of one storage are counted once. Every operand but those that are
    activations in training (the first, and the gated functions' second) stays anyway.
    """
    if not isinstance(kernel, Layer) or not kernel.passes:
        return None
    from torch.autograd.graph import saved_tensors_hooks

    operands = kernel.operands()
    stay = {one.data_ptr() for one in kernel.parameters(operands)}
    seen: dict[int, int] = {}

    def keep(tensor: Tensor) -> Tensor:
        if tensor.data_ptr() not in stay:
            size = tensor.numel() * tensor.element_size()
            seen[tensor.data_ptr()] = max(size, seen.get(tensor.data_ptr(), 0))
        return tensor

    with saved_tensors_hooks(keep, lambda tensor: tensor):
        kernel.function(*operands)
    return float(sum(seen.values()))


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
