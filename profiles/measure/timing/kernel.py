"""`Kernel`: one operator made ready to be timed, in all its passes.

What a forward keeps for its backward, as autograd itself reports it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, final

from profiles.measure.timing.buffers import Arena
from profiles.measure.timing.clock import Clock
from profiles.measure.timing.tasks import FORWARD, Tensor
from profiles.units import MS

# Code, its tables and the engine that no cache holds cost some 0.1 ms: in training the
# layers before have brought them. What takes longer than this does not notice.
BRIEF_S = 10 * MS

Operands = Sequence[Any]
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
