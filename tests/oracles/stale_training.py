"""Training with late gradients on one process: delays spelled out, version by version.

Micro-batch n (from where the pipeline was filled) of stage s is made with

    forward    the weights after f(n) updates: max(0, floor((n - A) / M)) where the rank
               is A micro-batches ahead; max(0, floor(n / M) - 1) under 2BW
    backward   the same weights where they are stashed, else those after floor(n / M)

and the mean of M gradients is the next update of that stage. Every version is a tensor
of its own here, and what autograd has saved of a weight is found by its storage.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.func import functional_call

Version = dict[str, Tensor]
AHEAD = {"async-1f1b": 1, "2bw": 1, "pipemare": 2, "pb": 2}  # for each rank behind
STASHED = ("async-1f1b", "2bw")


class Rule(Protocol):
    """How a stage is updated, and what passes read of its version number *number*."""

    def update(self, weights: Version, gradients: Version) -> Version: ...

    def forward(self, number: int, weights: Version) -> Version: ...

    def backward(self, number: int, weights: Version) -> Version: ...


@dataclass
class LateStage:
    """One stage and all of its versions, which *rule* makes."""

    module: nn.Module
    rule: Rule
    versions: list[Version] = field(default_factory=list)

    def __post_init__(self) -> None:
        named = self.module.named_parameters()
        start = {name: one.detach().clone() for name, one in named}
        self.versions = [start]


def late_steps(
    schedule: str,
    stages: Sequence[LateStage],
    batches: Sequence[Sequence[tuple[Tensor, Tensor]]],
) -> list[float]:
    """Train on *batches*, of micro-batches each; the mean losses."""
    m, losses = len(batches[0]), []
    begun = [len(one.versions) - 1 for one in stages]
    for step, batch in enumerate(batches):
        sums: list[Version] = [
            {name: torch.zeros_like(one) for name, one in stage.versions[-1].items()}
            for stage in stages
        ]
        mean = 0.0
        for place, (tokens, targets) in enumerate(batch):
            number = step * m + place
            leaves, hidden = [], tokens
            newest = [
                one.rule.backward(first + step, one.versions[first + step])
                for one, first in zip(stages, begun, strict=True)
            ]
            with torch.enable_grad():
                for rank, stage in enumerate(stages):
                    late = _version(schedule, rank, len(stages), number, m)
                    late += begun[rank]
                    weights = stage.versions[late]
                    used = _leaves(stage.rule.forward(late, weights))
                    given = (hidden, targets) if stage is stages[-1] else (hidden,)
                    with _reading(used, newest[rank], schedule in STASHED):
                        hidden = functional_call(stage.module, used, given)
                    leaves.append(used)
            flat = [one for used in leaves for one in used.values()]
            found = iter(torch.autograd.grad(hidden, flat))
            for total in sums:
                for name in total:
                    total[name] += next(found) / m
            mean += float(hidden.detach()) / m
        for stage, total in zip(stages, sums, strict=True):
            stage.versions.append(stage.rule.update(stage.versions[-1], total))
        losses.append(mean)
    return losses


def _version(schedule: str, rank: int, pp: int, number: int, m: int) -> int:
    if schedule == "2bw":
        return max(0, number // m - 1)
    return max(0, (number - AHEAD[schedule] * (pp - 1 - rank)) // m)


def _leaves(version: Mapping[str, Tensor]) -> Version:
    return {name: one.detach().requires_grad_() for name, one in version.items()}


def _reading(used: Version, newest: Version, stashed: bool) -> saved_tensors_hooks:
    """Around a forward, of which a backward reads *newest* in place of what is *used*,
    unless that is stashed."""
    places = {one.untyped_storage().data_ptr(): name for name, one in used.items()}

    def pack(saved: Tensor) -> object:
        name = places.get(saved.untyped_storage().data_ptr())
        if stashed or name is None:
            return saved
        return name, saved.shape, saved.stride(), saved.storage_offset()

    def unpack(packed: object) -> Tensor:
        if isinstance(packed, Tensor):
            return packed
        assert isinstance(packed, tuple)
        name, *where = packed
        return newest[name].as_strided(*where)

    return saved_tensors_hooks(pack, unpack)
