"""`SummedShards`: shards that other ranks hold too, summed when all of a step are in.

    holders    of a stage that has one for each copy of the model (Chimera): they do
               not come to its last backward in one order
    replicas   of shards (HSDP) whose gradients leave the device as they are scattered:
               ZeRO-2's and 3's with the optimizer away. `fully_shard` itself would keep
               them on the device until the last micro-batch

Both at once where there are both: one all-reduce for each unit of `fully_shard`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import AbstractContextManager

import torch
from torch import Tensor

from costmodel.action import Kind
from runtime.collectives import Group, all_reduce_from
from runtime.data_parallel import Sharded
from runtime.expert_parallel import of_experts
from runtime.host_gradients import HostGradients
from runtime.replicas import Replicas


class SummedShards:
    """*sharded* over one axis, of which *alike* hold the same; sums over holders are
    sums, those over *mean_over* replicas of shards means."""

    def __init__(self, sharded: Sharded, alike: Replicas, *, mean_over: int) -> None:
        self._sharded, self._alike, self._mean_over = sharded, alike, mean_over

    def begin(self) -> None:
        self._sharded.begin()

    def backward(self, kind: Kind, *, last: bool) -> AbstractContextManager[object]:
        return self._sharded.backward(kind, last=last)

    def finish(self) -> None:
        self._sharded.finish()
        made = dict(self._sharded.gradients())
        for names in self._sharded.units():
            apart = names and of_experts(names[0])
            with self.changing(names):
                self._sum(
                    [made[name] for name in names],
                    self._alike.experts if apart else self._alike.weights,
                )

    def gradients(self) -> Iterator[tuple[str, Tensor]]:
        yield from self._sharded.gradients()

    def changing(self, names: Collection[str]) -> AbstractContextManager[None]:
        return self._sharded.changing(names)

    def send_to(self, down: HostGradients) -> None:
        """As `Sharded.send_to`."""
        self._sharded.send_to(down)

    def _sum(self, parts: Sequence[Tensor], alike: Group | None) -> None:
        """Those that travel together, in place."""
        flat = torch.cat([part.flatten() for part in parts])
        if alike is not None:
            flat = all_reduce_from(flat, alike, self._sharded.device)
        flat.div_(self._mean_over)
        sizes = [part.numel() for part in parts]
        for part, whole in zip(parts, flat.split(sizes), strict=True):
            part.copy_(whole.view_as(part))
