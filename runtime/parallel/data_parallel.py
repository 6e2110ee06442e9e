"""Data parallelism of one stage: who has which gradient, and when it travels.

Buffered    every rank has all of it: our buffer, all-reduced once a step (ZeRO-0)
Sharded     `fully_shard`: ZeRO-1, 2 and 3 by when it gathers and scatters

zero 1   parameters gathered once a step, gradients scattered after the last backward
zero 2   parameters gathered once a step, gradients scattered every micro-batch
zero 3   parameters gathered for every pass, gradients scattered every micro-batch

Shards may span a part of the ranks (HSDP): what is scattered is then summed over the
replicas of shards too, once a step. Where `fully_shard` cannot do that, and where other
ranks hold the same stage, they are summed when all of a step are in (`Sharding.alike`):

holders    of a stage that has one for each copy of the model (Chimera): they do not
           come to its last backward in one order
replicas   of shards whose gradients leave the device as they are scattered: ZeRO-2's
           and 3's with the optimizer away. `fully_shard` itself would keep them on the
           device until the last micro-batch

Both at once where there are both: one all-reduce for each unit of `fully_shard`.
Where backward is split, `runtime.parallel.fsdp` says when gradients are whole.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from math import ceil
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor, Shard

from costmodel.schedule import Kind
from profiles.units import MB
from runtime.models import Experts, Policy
from runtime.offload import HERE, Host, HostGradients, StateOffload
from runtime.optim import local
from runtime.parallel.collectives import Group, Pending, start_all_reduce, sum_together
from runtime.parallel.compressed_gradients import GradientReduction
from runtime.parallel.expert_parallel import of_experts
from runtime.parallel.mesh import Replicas
from runtime.parallel.zero_plus import BlockGather, ZeroPlusGroups

BUCKET_BYTES = 25 * MB  # PyTorch DDP's default


@dataclass(slots=True)
class _Bucket:
    """A stretch of the buffer, and how many of its parameters are still missing."""

    values: Tensor
    group: Group | None  # that sums it
    members: int = 0
    missing: int = 0
    pending: Pending | None = None


@dataclass(slots=True)
class _Place:
    """Where a parameter's gradient lies, and the buckets that it reaches into."""

    view: Tensor
    buckets: list[_Bucket]
    added: int = 0  # micro-batches, in this step


def bucket_count(size_bytes: float) -> int:
    """Into how many equal buckets gradients of *size_bytes* are cut.

    >>> bucket_count(60e6), bucket_count(1)
    (3, 1)
    """
    return max(1, ceil(size_bytes / BUCKET_BYTES))


def _laid_out(
    parameters: list[nn.Parameter], group: Group | None
) -> tuple[list[_Bucket], dict[nn.Parameter, _Place]]:
    """One buffer for all, cut into equal buckets wherever parameters end."""
    sizes = [local(item).numel() for item in parameters]
    device = parameters[0].device
    buffer = torch.zeros(sum(sizes), dtype=torch.float32, device=device)
    count = bucket_count(buffer.numel() * buffer.itemsize)
    length = ceil(len(buffer) / count)
    buckets = [_Bucket(values, group) for values in buffer.split(length)]
    places: dict[nn.Parameter, _Place] = {}
    first = 0
    for parameter, size in zip(parameters, sizes, strict=True):
        view = buffer[first : first + size].view(local(parameter).shape)
        own = buckets[first // length : (first + size - 1) // length + 1]
        for bucket in own:
            bucket.members += 1
        places[parameter] = _Place(view, own)
        first += size
    return buckets, places


class _Vectors:
    """Gradients of biases and norms that wait for their places: those of a backward
    together, since each by itself is a kernel of a microsecond."""

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        self._first: list[tuple[Tensor, Tensor]] = []
        self._further: list[tuple[Tensor, Tensor]] = []

    def put(self, place: Tensor, made: Tensor, *, first: bool) -> None:
        """*made* will be in *place*, or added to it; once in a backward."""
        (self._first if first else self._further).append((place, made))

    def settle(self) -> None:
        """Write and add all that waits."""
        first, further = self._first, self._further
        self.forget()
        if first:
            torch._foreach_copy_(*_lists(first))
        if not further:
            return
        places, made = _lists(further)
        if any(place.dtype is not one.dtype for place, one in further):
            # Lists of unlike types are added one by one, but copied together.
            sizes = [place.numel() for place in places]
            wide = places[0].new_empty(sum(sizes)).split(sizes)
            torch._foreach_copy_(wide, made)
            made = list(wide)
        torch._foreach_add_(places, made)


def _lists(pairs: list[tuple[Tensor, Tensor]]) -> tuple[list[Tensor], list[Tensor]]:
    return [one for one, _ in pairs], [other for _, other in pairs]


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
    own, summed over the ranks *experts* that hold the same ones.

    They live in one fp32 buffer for the life of the run, as in Megatron-LM's DDP: a
    hook adds each fresh one to its place and lets it go. Equal buckets of the buffer
    are all-reduced as the last backward fills them, latest layers first; a *reduction*
    of its own begins when all are there. (PyTorch's own
    DDP holds neither DTensor parameters beside plain ones nor several forwards in
    flight.) Each of *micro_batches* adds to each parameter once, in whatever order:
    where backward is split, some gradients come with I and others with W. Sums over the
    ranks are divided by *mean_over*: the data-parallel ranks, each of which has
    micro-batches of its own (experts get the rows of several, and sum over fewer).
    """

    def __init__(
        self,
        stage: nn.Module,
        group: Group,
        *,
        experts: Group | None,
        micro_batches: int,
        mean_over: int,
        reduction: GradientReduction | None = None,
    ) -> None:
        self._micro_batches, self._mean_over = micro_batches, mean_over
        self._reduction = reduction
        self.alone = False  # whether each rank keeps its own: an optimizer exchanges
        self._sending = False
        self._vectors = _Vectors()
        self._buckets: list[_Bucket] = []
        self._places: dict[str, _Place] = {}
        named = dict(stage.named_parameters())
        # A user's module may call something else so: it has no such ranks.
        apart = {
            name: one
            for name, one in named.items()
            if experts is not None and of_experts(name)
        }
        others = {name: one for name, one in named.items() if name not in apart}
        for members, ranks in ((others, group), (apart, experts)):
            if not members or ranks is None:
                continue
            # Backward makes the gradients of the latest layers first.
            order = list(reversed(members.values()))
            buckets, places = _laid_out(order, ranks if ranks.size() > 1 else None)
            self._buckets += buckets
            self._places |= {name: places[one] for name, one in members.items()}
            for parameter, place in places.items():
                parameter.register_post_accumulate_grad_hook(partial(self._take, place))

    def begin(self) -> None:
        self._sending = False
        self._vectors.forget()
        for place in self._places.values():
            place.added = 0
        for bucket in self._buckets:
            bucket.missing, bucket.pending = bucket.members, None

    @contextmanager
    def backward(self, kind: Kind, *, last: bool) -> Iterator[None]:
        if last and self._reduction is None and not self.alone:
            # from now on a bucket travels when it is whole
            self._sending = True
            for bucket in self._buckets:
                self._send_if_whole(bucket)
        yield
        self._vectors.settle()

    @property
    def sent_bytes(self) -> int:
        """What a reduction of its own has all-reduced."""
        return 0 if self._reduction is None else self._reduction.sent_bytes

    def finish(self) -> None:
        for name, place in self._places.items():
            added = place.added
            assert added == self._micro_batches, f"{name} has {added} gradients"
        if self.alone:
            return
        if self._reduction is not None:
            self._reduction.reduce(dict(self.gradients()), self._mean_over)
            return
        for bucket in self._buckets:
            if bucket.group is None:
                if self._mean_over > 1:
                    bucket.values.div_(self._mean_over)
                continue
            assert bucket.pending is not None, "whole buckets are on their way"
            bucket.pending.wait().div_(self._mean_over)
            bucket.pending = None

    def gradients(self) -> Iterator[tuple[str, Tensor]]:
        for name, place in self._places.items():
            yield name, place.view

    def changing(self, names: Collection[str]) -> AbstractContextManager[None]:
        return nullcontext()

    def _take(self, place: _Place, parameter: nn.Parameter) -> None:
        """Called for each parameter and micro-batch, in backward: short."""
        made = parameter.grad
        assert made is not None
        parameter.grad = None
        if isinstance(made, DTensor):
            made = made.to_local()
        if made.dim() < 2:
            self._vectors.put(place.view, made, first=not place.added)
        elif place.added:
            place.view.add_(made)
        else:
            place.view.copy_(made)
        place.added += 1
        if place.added == self._micro_batches:
            for bucket in place.buckets:
                bucket.missing -= 1
                self._send_if_whole(bucket)

    def _send_if_whole(self, bucket: _Bucket) -> None:
        if self._sending and bucket.group is not None and not bucket.missing:
            self._vectors.settle()
            bucket.pending = start_all_reduce(bucket.values, bucket.group)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sharding:
    """How a stage is sharded: level, precision, and what of it is on the host.

    Ranks that are *alike* hold the same shards; sums over holders of a stage are sums,
    those over *mean_over* replicas of shards means.
    """

    zero: int
    policy: Policy
    device: torch.device
    away: StateOffload = HERE
    alike: Replicas | None = None
    mean_over: int = 1
    zero_plus: ZeroPlusGroups | None = None


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
        self.zero, self._how = how.zero, how
        # Of shards of one rank `fully_shard` would divide by its factor twice
        # (PyTorch 2.13).
        alone = experts is not None and experts.size(-1) == 1
        self._left_to_divide = 1
        self._gather = BlockGather()
        reshards: int | bool = how.zero == 3
        if how.zero_plus is not None:
            reshards = how.zero_plus.reshards()
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
                reshard_after_forward=reshards,
                offload_policy=how.away.policy(how.device),
            )
            if how.zero_plus is not None and isinstance(unit, FSDPModule):
                how.zero_plus.attach(unit, self._gather)
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
            down.follow(name, parameter, over)

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
        return self._gathering()

    @contextmanager
    def _gathering(self) -> Iterator[None]:
        """Around a backward, in which weights come as they are."""
        self._gather.in_backward = True
        yield
        self._gather.in_backward = False

    def finish(self) -> None:
        """`fully_shard` waits as the last backward ends."""
        if self._left_to_divide > 1 and self._down is None:
            for name, gradient in self.gradients():
                if of_experts(name):
                    gradient.div_(self._left_to_divide)
        if self._how.alike is not None:
            self._sum_over(self._how.alike)

    def gradients(self) -> Iterator[tuple[str, Tensor]]:
        if self._down is not None:
            yield from self._down.sums().items()
            return
        for name, parameter in self._stage.named_parameters():
            assert parameter.grad is not None, f"{name} took no part in the loss"
            yield name, local(parameter.grad)

    def changing(self, names: Collection[str]) -> AbstractContextManager[None]:
        return nullcontext() if self._down is None else self._down.changing(names)

    def _sum_over(self, alike: Replicas) -> None:
        made = dict(self.gradients())
        for group in self.groups():
            names = [one._param_fqn for one in group.fsdp_params]
            apart = alike.experts is not None and names and of_experts(names[0])
            ranks = alike.experts if apart else alike.weights
            with self.changing(names):
                sum_together(
                    [made[name] for name in names],
                    ranks,
                    self._how.device,
                    mean_over=self._how.mean_over,
                )

    @property
    def sent_bytes(self) -> int:
        """What ZeRO++ has sent from this rank instead of weights in forwards."""
        return self._gather.sent_bytes

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
