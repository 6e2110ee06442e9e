"""The whole gradient on every rank: summed over micro-batches, then over replicas.

Gradients live in one fp32 buffer for the life of the run, as in Megatron-LM's DDP: a
hook adds each fresh one to its place and lets it go. Equal buckets of the buffer are
all-reduced as the last backward fills them, latest layers first. (PyTorch's own DDP
holds neither DTensor parameters beside plain ones nor several forwards in flight.)

A parameter is whole when every micro-batch has added to it, in whatever order: where
backward is split, some parameters' gradients come with I and the others' with W.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from math import ceil

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from profiles.units import MB
from runtime.optim import local
from runtime.parallel.collectives import Group, Pending, start_all_reduce

BUCKET_BYTES = 25 * MB  # PyTorch DDP's default


@dataclass(slots=True)
class _Bucket:
    """A stretch of the buffer, and how many of its parameters are still missing."""

    values: Tensor
    members: int = 0
    missing: int = 0
    pending: Pending | None = None


@dataclass(slots=True)
class _Place:
    """Where a parameter's gradient lies, and the buckets that it reaches into."""

    view: Tensor
    buckets: list[_Bucket]
    added: int = 0  # micro-batches, in this step


class GradientBuffer:
    """The gradients of one stage's parameters *named*, over the ranks of *group*.

    Each of *micro_batches* adds to each parameter once. Sums over the ranks are divided
    by *mean_over*: the data-parallel ranks, each of which has micro-batches of its own
    (experts get the rows of several, and sum over fewer ranks).
    Call `begin` before a step, `last` before the last backward, `finish` after it.
    """

    def __init__(
        self,
        named: Mapping[str, nn.Parameter],
        group: Group,
        *,
        micro_batches: int,
        mean_over: int,
    ) -> None:
        self.group = group if group.size() > 1 else None
        self._micro_batches, self._mean_over = micro_batches, mean_over
        self._sending = False
        self._names = dict(named)
        # Backward makes the gradients of the latest layers first.
        order = list(reversed(self._names.values()))
        self._buckets, self._places = _laid_out(order)
        for parameter, place in self._places.items():
            parameter.register_post_accumulate_grad_hook(partial(self._take, place))

    def begin(self) -> None:
        """Forget the step before."""
        self._sending = False
        for place in self._places.values():
            place.added = 0
        for bucket in self._buckets:
            bucket.missing, bucket.pending = bucket.members, None

    def last(self) -> None:
        """The last backward begins: from now on a bucket travels when it is whole."""
        self._sending = True
        for bucket in self._buckets:
            self._send_if_whole(bucket)

    def finish(self) -> None:
        """Wait for the sums over replicas; the mean of them is the gradient."""
        for name, parameter in self._names.items():
            added = self._places[parameter].added
            assert added == self._micro_batches, f"{name} has {added} gradients"
        for bucket in self._buckets:
            if self.group is None:
                if self._mean_over > 1:
                    bucket.values.div_(self._mean_over)
                continue
            assert bucket.pending is not None, "whole buckets are on their way"
            bucket.pending.wait().div_(self._mean_over)
            bucket.pending = None

    def gradients(self) -> Iterator[tuple[str, Tensor]]:
        """Each parameter's name and its gradient, as this rank has it."""
        for name, parameter in self._names.items():
            yield name, self._places[parameter].view

    def _take(self, place: _Place, parameter: nn.Parameter) -> None:
        """Called for each parameter and micro-batch, in backward: short."""
        made = parameter.grad
        assert made is not None
        parameter.grad = None
        if isinstance(made, DTensor):
            made = made.to_local()
        if place.added:
            place.view.add_(made)
        else:
            place.view.copy_(made)
        place.added += 1
        if place.added == self._micro_batches:
            for bucket in place.buckets:
                bucket.missing -= 1
                self._send_if_whole(bucket)

    def _send_if_whole(self, bucket: _Bucket) -> None:
        if self._sending and self.group is not None and not bucket.missing:
            bucket.pending = start_all_reduce(bucket.values, self.group)


def bucket_count(size_bytes: float) -> int:
    """Into how many equal buckets gradients of *size_bytes* are cut.

    >>> bucket_count(60e6), bucket_count(1)
    (3, 1)
    """
    return max(1, ceil(size_bytes / BUCKET_BYTES))


def _laid_out(
    parameters: list[nn.Parameter],
) -> tuple[list[_Bucket], dict[nn.Parameter, _Place]]:
    """One buffer for all, cut into equal buckets wherever parameters end."""
    sizes = [local(item).numel() for item in parameters]
    device = parameters[0].device
    buffer = torch.zeros(sum(sizes), dtype=torch.float32, device=device)
    count = bucket_count(buffer.numel() * buffer.itemsize)
    length = ceil(len(buffer) / count)
    buckets = [_Bucket(values) for values in buffer.split(length)]
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
