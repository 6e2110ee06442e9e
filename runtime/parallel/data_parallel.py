"""Data parallelism of one stage: who has which gradient, and when it travels.

Buffered    every rank has all of it: our buffer, all-reduced once a step (ZeRO-0)
Ddp         the same by PyTorch's DistributedDataParallel, where that is right:
            without tensor or pipeline parallelism (its reducer counts on one
            forward, then one backward, of plain parameters)
Sharded     `fully_shard`: ZeRO-1, 2 and 3 by when it gathers and scatters

zero 1   parameters gathered once a step, gradients scattered after the last backward
zero 2   parameters gathered once a step, gradients scattered every micro-batch
zero 3   parameters gathered for every pass, gradients scattered every micro-batch

Shards may span a part of the ranks (HSDP): what is scattered is then summed over the
replicas of shards too, once a step. `runtime.parallel.fsdp` does that where
`fully_shard` cannot, and sums the shards of a stage with two holders.

Where backward is split, `runtime.parallel.fsdp` says when gradients are whole.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import Shard

from costmodel.schedule import Kind
from runtime.models import Experts, Policy
from runtime.offload import HERE, Host, HostGradients, StatesAway
from runtime.optim import local
from runtime.parallel.collectives import Group
from runtime.parallel.expert_parallel import of_experts
from runtime.parallel.gradient_buffer import GradientBuffer

Unit = nn.Module | list[nn.Module]  # what `fully_shard` gathers and scatters at once


class DataParallel(Protocol):
    """What the step needs of a stage's data parallelism."""

    def begin(self) -> None:
        """Before the first forward of a step."""

    def backward(self, kind: Kind, *, last: bool) -> AbstractContextManager[object]:
        """Around a B, I or W; *last* if it is the stage's last of the step."""

    def finish(self) -> None:
        """After the last backward: wait for what still travels."""

    def gradients(self) -> Iterator[tuple[str, Tensor]]:
        """Each parameter's name and this rank's part of its gradient."""

    def changing(self, names: Collection[str]) -> AbstractContextManager[None]:
        """Around a change, in place, of the gradients called *names*."""


class Buffered:
    """Whole gradients on every rank, in our buffer; those of experts in one of their
    own, summed over the ranks *experts* that hold the same ones."""

    def __init__(
        self,
        stage: nn.Module,
        group: Group,
        *,
        experts: Group | None,
        micro_batches: int,
        mean_over: int,
    ) -> None:
        named = dict(stage.named_parameters())
        apart = {name: one for name, one in named.items() if of_experts(name)}
        others = {name: one for name, one in named.items() if name not in apart}
        self._buffers = [
            GradientBuffer(
                members, ranks, micro_batches=micro_batches, mean_over=mean_over
            )
            for members, ranks in ((others, group), (apart, experts))
            if members and ranks is not None
        ]

    def begin(self) -> None:
        for buffer in self._buffers:
            buffer.begin()

    def backward(self, kind: Kind, *, last: bool) -> AbstractContextManager[object]:
        if last:
            for buffer in self._buffers:
                buffer.last()
        return nullcontext()

    def finish(self) -> None:
        for buffer in self._buffers:
            buffer.finish()

    def gradients(self) -> Iterator[tuple[str, Tensor]]:
        for buffer in self._buffers:
            yield from buffer.gradients()

    def changing(self, names: Collection[str]) -> AbstractContextManager[None]:
        return nullcontext()


@dataclass(frozen=True, slots=True, kw_only=True)
class Sharding:
    """How a stage is sharded: level, precision, and what of it is on the host."""

    zero: int
    policy: Policy
    device: torch.device
    away: StatesAway = HERE


class Sharded:
    """Gradients and optimizer states (ZeRO-3: parameters too) cut over the last axis of
    *mesh*, and alike over another before it; those of experts over the mesh *experts*,
    of ranks that hold the same ones. Sums over either are means over *mesh*. Where
    ZeRO-3's optimizer has masters of its own in the host's memory, gradients go there
    as they are scattered."""

    def __init__(
        self,
        stage: nn.Module,
        units: Sequence[Unit],
        mesh: DeviceMesh,
        how: Sharding,
        experts: DeviceMesh | None = None,
    ) -> None:
        self.zero, self.device = how.zero, how.device
        # Of shards of one rank `fully_shard` would divide by its factor twice
        # (PyTorch 2.13).
        alone = experts is not None and experts.size(-1) == 1
        self._left_to_divide = 1
        if experts is not None and alone:
            self._left_to_divide = mesh.size() // experts.size()
        for unit in (*units, stage):
            apart = isinstance(unit, Experts)
            over = experts if apart and experts is not None else mesh
            fully_shard(
                unit,
                mesh=over,
                shard_placement_fn=partial(evenly, ranks=over.size(over.ndim - 1)),
                mp_policy=how.policy.fully_shard,
                reshard_after_forward=how.zero == 3,
                offload_policy=how.away.policy(how.device),
            )
            if apart and not alone and isinstance(unit, FSDPModule):
                unit.set_gradient_divide_factor(mesh.size())
                unit.set_force_sum_reduction_for_comms(True)  # gloo has no scaled sum
        _prefetch_in_order([stage, *reversed(list(units))])
        assert isinstance(stage, FSDPModule)
        self._stage: nn.Module = stage
        self._root: FSDPModule = stage
        self._down: HostGradients | None = None
        if how.away.masters and not how.away.on_drive:
            self.send_to(HostGradients(Host(how.device)))

    def send_to(self, down: HostGradients) -> None:
        """Send gradients to *down* as they are scattered."""
        self._down = down
        for name, parameter in self._stage.named_parameters():
            over = self._left_to_divide if of_experts(name) else 1
            _sent_down(name, parameter, down, over)

    def begin(self) -> None:
        if self._down is not None:
            self._down.begin()
        for parameter in self._stage.parameters():
            parameter.grad = None

    def backward(self, kind: Kind, *, last: bool) -> AbstractContextManager[object]:
        # Else it keeps the buffer that the last unit's gradients were sent from until
        # the next backward sends some: through the whole of the next forward.
        self._root.set_is_last_backward(last or self.zero >= 2)
        self._root.set_requires_gradient_sync(last or self.zero >= 2)
        self._root.set_requires_all_reduce(last)
        self._root.set_reshard_after_backward(last or self.zero == 3)
        return nullcontext()

    def finish(self) -> None:
        """`fully_shard` waits as the last backward ends."""
        if self._left_to_divide > 1 and self._down is None:
            for name, gradient in self.gradients():
                if of_experts(name):
                    gradient.div_(self._left_to_divide)

    def gradients(self) -> Iterator[tuple[str, Tensor]]:
        if self._down is not None:
            yield from self._down.sums().items()
            return
        for name, parameter in self._stage.named_parameters():
            assert parameter.grad is not None, f"{name} took no part in the loss"
            yield name, local(parameter.grad)

    def changing(self, names: Collection[str]) -> AbstractContextManager[None]:
        return nullcontext() if self._down is None else self._down.changing(names)

    def units(self) -> Iterator[list[str]]:
        """The names of parameters that travel together, the latest layers' first."""
        for group in self.groups():
            yield [one._param_fqn for one in group.fsdp_params]

    def groups(self) -> Iterator[Any]:
        """`fully_shard`'s groups of parameters, the latest layers' first."""
        states = self._root._get_fsdp_state()._state_ctx.all_states
        for state in reversed(states):
            yield from state._fsdp_param_groups


def evenly(parameter: nn.Parameter, *, ranks: int) -> Shard:
    """The cut of *parameter*: along its first dimension that *ranks* divide.

    `fully_shard` pads what does not divide: of one expert on two ranks twice as much
    would travel, and one rank would keep all of it. Where nothing divides, so be it.
    """
    sizes = local(parameter).shape
    return Shard(next((dim for dim, size in enumerate(sizes) if not size % ranks), 0))


def _sent_down(
    name: str, parameter: nn.Parameter, down: HostGradients, over: int
) -> None:
    """Send the gradients of *parameter*'s shard, divided by *over*, down as soon as
    they are scattered."""

    def take(sharded: Tensor) -> None:
        assert sharded.grad is not None
        made = local(sharded.grad)
        down.take(name, made.div_(over) if over > 1 else made)
        sharded.grad = None

    parameter.register_post_accumulate_grad_hook(take)


def _prefetch_in_order(units: Sequence[Unit]) -> None:
    """While one of *units* (in backward order) computes, the next one is gathered.

    Said outright: by itself `fully_shard` goes by the order of all forwards before, and
    with several micro-batches in flight gathers for the wrong one.
    """
    firsts = [unit[0] if isinstance(unit, list) else unit for unit in units]
    for unit, following in zip(firsts, (*firsts[1:], firsts[-1]), strict=True):
        assert isinstance(unit, FSDPModule)
        assert isinstance(following, FSDPModule)
        unit.set_modules_to_backward_prefetch([following])
