"""`ShardReads`: `fully_shard`'s shards come from the drive before they are gathered.

    forward    a unit's shards are read while the unit before computes, and let go
    backward   the same, two units ahead: `fully_shard` itself gathers one ahead

ZeRO-1 and 2 gather once a step: the first forward after an update reads, ZeRO-3 reads
for every pass (ZeRO-Infinity: Rajbhandari et al., SC 2021, section 5.1).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule

from runtime.offload.state_file import StateFile

ROOT = 0  # the stage itself, whose own parameters are gathered around all others


class ShardReads:
    """Of the units of *stage*, whose parameters are members of *file* by `id`, for
    every pass (*passes*) or for the first forward after `again`."""

    def __init__(
        self,
        stage: nn.Module,
        file: StateFile,
        members: Mapping[int, int],
        *,
        passes: bool,
    ) -> None:
        self._file, self._passes = file, passes
        self._here: set[int] = set()  # units that were read and not let go
        self._done: set[int] = set()  # since `again`
        units = [one for one in stage.modules() if isinstance(one, FSDPModule)]
        self._parts = [
            list(
                file.value_parts(
                    members[id(one)] for one in _own(unit) if id(one) in members
                )
            )
            for unit in units
        ]
        for number, unit in enumerate(units):
            before = partial(self._before, number)
            unit.register_forward_pre_hook(before, prepend=True)
            unit.register_forward_hook(partial(self._after, number))

    def again(self) -> None:
        """The weights have changed."""
        self._done.clear()

    def _before(self, unit: int, *_: Any) -> None:
        if not self._gathers(unit):
            return
        self._read(unit)
        if unit + 1 < len(self._parts):
            self._read(unit + 1)

    def _after(self, unit: int, module: Any, given: Any, output: Any) -> None:
        if not self._gathers(unit):
            return
        self._let_go(unit)
        self._done.add(unit)
        if not self._passes or not torch.is_grad_enabled():
            return
        if unit == len(self._parts) - 1:  # backward may be next
            self._read(unit)
            self._read(unit - 1)
        for one in output if isinstance(output, tuple) else (output,):
            if isinstance(one, Tensor) and one.requires_grad:
                one.register_hook(partial(self._backward, unit))
                break

    def _backward(self, unit: int, _: Tensor) -> None:
        self._read(unit)
        self._let_go(unit)
        if unit - 2 > ROOT:
            self._read(unit - 2)

    def _gathers(self, unit: int) -> bool:
        """Whether a forward gathers: not one that is run again in backward, whose
        parameters are whole, nor ZeRO-2's second."""
        again = torch._C._current_graph_task_id() != -1
        return not again and (self._passes or unit not in self._done)

    def _read(self, unit: int) -> None:
        if unit in self._here or (unit in self._done and not self._passes):
            return
        self._here.add(unit)
        for part in self._parts[unit]:
            self._file.ahead(part)

    def _let_go(self, unit: int) -> None:
        self._here.discard(unit)
        for part in self._parts[unit]:
            self._file.forget(part)


def _own(unit: nn.Module) -> Iterator[nn.Parameter]:
    """The parameters of a unit that are not of one inside it, each once."""
    inside = [one for one in unit.modules() if isinstance(one, FSDPModule)][1:]
    others = {id(one) for inner in inside for one in inner.parameters()}
    return (one for one in unit.parameters() if id(one) not in others)
