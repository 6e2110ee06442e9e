"""`Kernel`: one operator made ready to be timed, in all its passes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, final

from profiles.measure.arena import Arena
from profiles.measure.clock import Clock
from profiles.measure.tasks import FORWARD
from profiles.measure.tensors import Tensor

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
    all but what training has just made: the first operand, or the gradient.
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

    def visit(self, clock: Clock, calls: int) -> Seconds:
        with self.within():
            return self._visited(clock, calls)

    def _visited(self, clock: Clock, calls: int) -> Seconds:
        sets = [self.operands() for _ in range(calls)]
        self._forget([one[0] for one in sets])
        made: list[Tensor] = []
        seconds = {FORWARD: clock.timed(lambda: made.extend(self._forward(sets)))}
        if not self.passes:
            return {FORWARD: seconds[FORWARD] / calls}
        gradients = [self.gradient(one) for one in made]
        self._forget(gradients)
        last = len(self.passes) - 1
        for place, (direction, wanted) in enumerate(self.passes.items()):
            seconds[direction] = clock.timed(
                lambda wanted=wanted, keep=place < last: self._backward(  # type: ignore[misc]
                    sets, made, gradients, wanted, keep
                )
            )
        return {name: value / calls for name, value in seconds.items()}

    def parameters(self, operands: Operands) -> list[Tensor]:
        """What is there before and after: all but the activations that come in."""
        return [one for one in operands[self.activations :] if hasattr(one, "data_ptr")]

    def _forward(self, sets: Sequence[Operands]) -> list[Tensor]:
        made = [self.function(*operands) for operands in sets]
        if isinstance(made[0], tuple):
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
