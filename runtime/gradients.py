"""The whole gradient on every rank: summed over micro-batches, then over replicas.

Gradients live in one fp32 buffer for the life of the run, as in Megatron-LM's DDP: a
hook adds each fresh one to its place and lets it go. Equal buckets of the buffer are
all-reduced as the last backward fills them, latest layers first. (PyTorch's own DDP
holds neither DTensor parameters beside plain ones nor several forwards in flight.)
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import ceil

import torch
from torch import Tensor, nn

from profiles.units import MB
from runtime.collectives import Group, Pending, start_all_reduce
from runtime.optimizer import local

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
    fresh: bool = True  # no micro-batch has been added in this step


class GradientBuffer:
    """The gradients of one stage's parameters, over the ranks of *group*.

    Call `begin` before a step, set `last` for the last backward, and `finish` after it.
    """

    def __init__(self, module: nn.Module, group: Group) -> None:
        self.group = group if group.size() > 1 else None
        self.last = False
        self._names = dict(module.named_parameters())
        # Backward makes the gradients of the latest layers first.
        order = list(reversed(self._names.values()))
        self._buckets, self._places = _laid_out(order)
        for parameter in order:
            parameter.register_post_accumulate_grad_hook(self._take)

    def begin(self) -> None:
        """Forget the step before."""
        for place in self._places.values():
            place.fresh = True
        for bucket in self._buckets:
            bucket.missing = bucket.members

    def finish(self) -> None:
        """Wait for the sums over replicas; the mean of them is the gradient."""
        if self.group is None:
            return
        for bucket in self._buckets:
            assert bucket.pending is not None, "every parameter takes part in the loss"
            bucket.pending.wait().div_(self.group.size())
            bucket.pending = None

    def gradients(self) -> Iterator[tuple[str, Tensor]]:
        """Each parameter's name and its gradient, as this rank has it."""
        for name, parameter in self._names.items():
            yield name, self._places[parameter].view

    @torch.no_grad()
    def _take(self, parameter: nn.Parameter) -> None:
        assert parameter.grad is not None
        place, made = self._places[parameter], local(parameter.grad)
        if place.fresh:
            place.view.copy_(made)
        else:
            place.view.add_(made)
        place.fresh = False
        parameter.grad = None
        if self.last and self.group is not None:
            for bucket in place.buckets:
                bucket.missing -= 1
                if not bucket.missing:
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
