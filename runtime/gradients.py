"""The whole gradient on every rank: summed over micro-batches, then over replicas.

Gradients live in one fp32 buffer for the life of the run, as in Megatron-LM's DDP: a
hook adds each fresh one to its place and lets it go. Buckets of the buffer are
all-reduced as the last backward fills them, latest layers first.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

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
    members: int
    missing: int = 0
    pending: Pending | None = None


@dataclass(slots=True)
class _Place:
    view: Tensor
    bucket: _Bucket
    fresh: bool = True  # no micro-batch has been added in this step


class GradientBuffer:
    """The gradients of one stage's parameters, over the ranks of *group*.

    Call `begin` before a step, set `last` for the last backward, and `finish` after it.
    """

    def __init__(self, module: nn.Module, group: Group | None) -> None:
        self.group = group if group is not None and group.size() > 1 else None
        self.last = False
        self._names = dict(module.named_parameters())
        self._places = self._laid_out(list(reversed(self._names.values())))
        for parameter in self._names.values():
            parameter.register_post_accumulate_grad_hook(self._take)

    def begin(self) -> None:
        """Forget the step before."""
        for place in self._places.values():
            place.fresh = True
            place.bucket.missing = place.bucket.members

    def finish(self) -> None:
        """Wait for the sums over replicas; the mean of them is the gradient."""
        if self.group is None:
            return
        for bucket in self._buckets:
            if bucket.pending is None:
                bucket.pending = start_all_reduce(bucket.values, self.group)
        for bucket in self._buckets:
            assert bucket.pending is not None
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
            self._counted(place.bucket, self.group)

    def _counted(self, bucket: _Bucket, group: Group) -> None:
        bucket.missing -= 1
        if not bucket.missing:
            bucket.pending = start_all_reduce(bucket.values, group)

    def _laid_out(self, parameters: list[nn.Parameter]) -> dict[nn.Parameter, _Place]:
        sizes = [local(item).numel() for item in parameters]
        device = parameters[0].device
        buffer = torch.zeros(sum(sizes), dtype=torch.float32, device=device)
        places: dict[nn.Parameter, _Place] = {}
        self._buckets: list[_Bucket] = []
        first = begun = 0
        waiting: list[tuple[nn.Parameter, Tensor]] = []
        for parameter, size in zip(parameters, sizes, strict=True):
            part = local(parameter)
            waiting.append((parameter, buffer[first : first + size].view(part.shape)))
            first += size
            if (first - begun) * buffer.itemsize >= BUCKET_BYTES or first == len(
                buffer
            ):
                bucket = _Bucket(buffer[begun:first], len(waiting))
                self._buckets.append(bucket)
                places |= {who: _Place(view, bucket) for who, view in waiting}
                waiting, begun = [], first
        return places
