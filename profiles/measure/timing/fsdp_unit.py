"""What `fully_shard` does in a unit beside what it communicates.

    unit-pass      its hooks in a forward and a backward of a whole unit
    unit-reduce    the same where gradients are reduced: copied into one buffer, divided
    unit-gather    shards copied into a buffer, whole weights out of one, and let go

Of a layer's own tensors, or parts of them, each after a product, as in training: one
after the other they would find their code and data in the caches, and take a quarter
of the time. The communication is left out by telling `fully_shard` to gather and
scatter with functions that do nothing: collectives have samples of their own.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, Final, final

from profiles.measure.timing.clock import Clock, between
from profiles.measure.timing.kernel import Kernel, Seconds
from profiles.measure.timing.operands import Arena
from profiles.measure.timing.tasks import FORWARD, Operation, Tensor

UNITS: Final = 4  # of one module, so that what is copied was not there a moment ago


@final
class Unit(Kernel):
    """One of `UNIT_KINDS`, timed over several units; needs a process group."""

    lasting = True

    def __init__(self, operation: Operation, arena: Arena) -> None:
        self.pause = _Pause(between(arena))
        whole = _whole(operation.pieces or operation.shape, self.pause)
        self.work = WORK[operation.kind](whole, self.pause)

    def visit(self, clock: Clock, calls: int) -> Seconds:
        now = self.pause.begin(own=clock.own and clock.device == "cpu")
        clock.ranks.barrier()
        began_s = now()
        self.work()
        seconds = now() - began_s - self.pause.seconds
        return {FORWARD: clock.turns * max(seconds, 0.0) / UNITS}


class _Pause:
    """What a rank computes between, and how long that took."""

    def __init__(self, compute: Callable[[], object]) -> None:
        self.compute, self.seconds = compute, 0.0
        self.now: Callable[[], float] = time.perf_counter

    def begin(self, *, own: bool) -> Callable[[], float]:
        """Count from nothing, by this thread's CPU time if a rank has but *own*."""
        self.seconds = 0.0
        self.now = time.thread_time if own else time.perf_counter
        return self.now

    def __call__(self) -> None:
        began_s = self.now()
        self.compute()
        self.seconds += self.now() - began_s


def _whole(sizes: Sequence[int], pause: Callable[[], None]) -> Any:
    """A module of units, each with parameters of *sizes*, sharded over all ranks."""
    import torch.distributed as dist
    from torch import nn
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.fsdp import fully_shard

    whole: Any = nn.Sequential(*(_unit(sizes, pause) for _ in range(UNITS)))
    mesh = DeviceMesh("cpu", list(range(dist.get_world_size())))
    for module in (*whole, whole):
        fully_shard(module, mesh=mesh, reshard_after_forward=False)
    for unit in whole:
        unit.set_custom_all_gather(_Silent())
        unit.set_custom_reduce_scatter(_Silent())
    whole.set_reshard_after_backward(False)
    return whole


def _unit(sizes: Sequence[int], pause: Callable[[], None]) -> Any:
    import torch
    from torch import nn

    class Through(torch.autograd.Function):
        """Hands its input on; gradients of the weights are there at once, or none."""

        @staticmethod
        def forward(ctx: Any, given: Tensor, wanted: bool, *weights: Tensor) -> Tensor:
            ctx.sizes = [one.numel() if wanted else 0 for one in weights]
            pause()
            return given.clone()

        @staticmethod
        def backward(ctx: Any, *gradients: Tensor) -> Any:
            pause()
            made = (
                gradients[0].new_empty(size) if size else None for size in ctx.sizes
            )
            return (*gradients, None, *made)

    class Layer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weights = nn.ParameterList(torch.full((n,), 0.5) for n in sizes)
            self.wanted = False

        def forward(self, given: Tensor) -> Tensor:
            made: Tensor = Through.apply(given, self.wanted, *self.weights)  # type: ignore[no-untyped-call]
            return made

    return Layer()


class _Silent:
    """Gathers or scatters nothing, into a buffer as the real one takes it."""

    def allocate(self, size: Sequence[int], *, dtype: Any, device: Any) -> Tensor:
        import torch

        return torch.empty(*size, dtype=dtype, device=device)

    def __call__(self, *_: object, **__: object) -> None:
        return None


def _passes(whole: Any, *, reduces: bool) -> Callable[[], None]:
    import torch

    parameters = list(whole.parameters())
    given = torch.zeros(1, requires_grad=True)
    whole.set_requires_gradient_sync(reduces)
    for unit in whole:
        unit.wanted = reduces
        unit.unshard()

    def work() -> None:
        whole(given).backward()
        for parameter in parameters:
            parameter.grad = None

    return work


def _gathers(whole: Any, pause: Callable[[], None]) -> Callable[[], None]:
    def work() -> None:
        for unit in whole:
            pause()
            unit.unshard()
        for unit in whole:
            pause()
            unit.reshard()

    return work


WORK: Final[dict[str, Callable[[Any, Callable[[], None]], Callable[[], None]]]] = {
    "unit-pass": lambda whole, _: _passes(whole, reduces=False),
    "unit-reduce": lambda whole, _: _passes(whole, reduces=True),
    "unit-gather": _gathers,
}
