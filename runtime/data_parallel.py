"""Data parallelism of one stage: who has which gradient, and when it travels.

Buffered    every rank has all of it: our buffer, all-reduced once a step (ZeRO-0)
Ddp         the same by PyTorch's DistributedDataParallel, where that is right:
            without tensor or pipeline parallelism (its reducer counts on one
            forward, then one backward, of plain parameters)
Sharded     `fully_shard`: ZeRO-1, 2 and 3 by when it gathers and scatters

zero 1   parameters gathered once a step, gradients scattered after the last backward
zero 2   parameters gathered once a step, gradients scattered every micro-batch
zero 3   parameters gathered for every pass, gradients scattered every micro-batch
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.nn.parallel import DistributedDataParallel

from profiles.units import MiB
from runtime.gradients import BUCKET_BYTES, GradientBuffer
from runtime.optimizer import local
from runtime.precision import Policy


class DataParallel(Protocol):
    """What the step needs of a stage's data parallelism."""

    module: nn.Module  # what to call: the stage, perhaps wrapped

    def begin(self) -> None:
        """Before the first forward of a step."""

    def forward(self, *, last: bool) -> AbstractContextManager[object]:
        """Around a forward; *last* if no other micro-batch follows."""

    def backward(self, *, last: bool) -> None:
        """Before a backward; *last* if it is the stage's last of the step."""

    def finish(self) -> None:
        """After the last backward: wait for what still travels."""

    def gradients(self) -> Iterator[tuple[str, Tensor]]:
        """Each parameter's name and this rank's part of its gradient."""


class Buffered:
    """Whole gradients on every rank, in our buffer."""

    def __init__(self, stage: nn.Module, mesh: DeviceMesh) -> None:
        self.module = stage
        self._buffer = GradientBuffer(stage, mesh.get_group())

    def begin(self) -> None:
        self._buffer.begin()

    def forward(self, *, last: bool) -> AbstractContextManager[object]:
        return nullcontext()

    def backward(self, *, last: bool) -> None:
        self._buffer.last = last

    def finish(self) -> None:
        self._buffer.finish()

    def gradients(self) -> Iterator[tuple[str, Tensor]]:
        return self._buffer.gradients()


class Ddp:
    """Whole gradients on every rank, by PyTorch."""

    def __init__(self, stage: nn.Module, mesh: DeviceMesh) -> None:
        self._stage = stage
        self._wrapped = DistributedDataParallel(
            stage,
            process_group=mesh.get_group(),
            gradient_as_bucket_view=True,
            bucket_cap_mb=BUCKET_BYTES / MiB,
        )
        self.module: nn.Module = self._wrapped

    def begin(self) -> None:
        # In place: the gradients are views of the reducer's buckets.
        gradients = [p.grad for p in self._stage.parameters() if p.grad is not None]
        if gradients:
            torch._foreach_zero_(gradients)

    def forward(self, *, last: bool) -> AbstractContextManager[object]:
        return nullcontext() if last else self._wrapped.no_sync()

    def backward(self, *, last: bool) -> None:
        """The forward has decided."""

    def finish(self) -> None:
        """The reducer waits inside the last backward."""

    def gradients(self) -> Iterator[tuple[str, Tensor]]:
        return made(self._stage)


class Sharded:
    """Gradients and optimizer states (ZeRO-3: parameters too) cut over the ranks."""

    def __init__(
        self,
        stage: nn.Module,
        units: Iterable[list[nn.Module]],
        mesh: DeviceMesh,
        zero: int,
        policy: Policy,
    ) -> None:
        self.zero = zero
        for unit in (*units, [stage]):
            fully_shard(
                unit,
                mesh=mesh,
                mp_policy=policy.fully_shard,
                reshard_after_forward=zero == 3,
            )
        assert isinstance(stage, FSDPModule)
        self.module: nn.Module = stage
        self._root: FSDPModule = stage

    def begin(self) -> None:
        for parameter in self.module.parameters():
            parameter.grad = None

    def forward(self, *, last: bool) -> AbstractContextManager[object]:
        return nullcontext()

    def backward(self, *, last: bool) -> None:
        self._root.set_is_last_backward(last)
        self._root.set_requires_gradient_sync(last or self.zero >= 2)
        self._root.set_reshard_after_backward(last or self.zero == 3)

    def finish(self) -> None:
        """`fully_shard` waits as the last backward ends."""

    def gradients(self) -> Iterator[tuple[str, Tensor]]:
        return made(self.module)


def made(module: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """The local parts of the gradients that autograd left on the parameters."""
    for name, parameter in module.named_parameters():
        assert parameter.grad is not None, f"{name} took no part in the loss"
        yield name, local(parameter.grad)
