"""`DiskOptimizer`: masters and moments in a file, updated bucket by bucket.

    gradients go down → each bucket: read, updated by the host's cores, written back
    → working weights come back

(ZeRO-Infinity: Rajbhandari et al., SC 2021, section 5.) Each step reads and writes
every state once; gradients stay in the host's memory until their bucket's turn. Where
`fully_shard`'s shards are the masters they lie in the file themselves, and the next
gather reads them there.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from runtime.disk_states import Bucket, StateFile
from runtime.drive_shards import ShardReads
from runtime.host import Host
from runtime.host_gradients import HostGradients
from runtime.optimizer import Leaf, Optimizer, Settings, local

MOMENTS: Final[dict[str, tuple[str, ...]]] = {
    "adamw": ("exp_avg", "exp_avg_sq"),
    "adam": ("exp_avg", "exp_avg_sq"),
    "sgd-momentum": ("momentum_buffer",),
    "sgd": (),
}
COUNTED: Final = ("adamw", "adam")  # that keep the number of their steps


class DiskOptimizer(Optimizer):
    """As `Optimizer`, of parameters on *device*, its states in a file of *folder*;
    *shards* are masters themselves, which the file takes in."""

    def __init__(
        self,
        parameters: Iterable[tuple[str, nn.Parameter]],
        settings: Settings,
        device: torch.device,
        folder: Path,
        *,
        shards: bool = False,
    ) -> None:
        named = list(parameters)
        self._host, self._shards = Host(device), shards
        self.reads: list[ShardReads] = []
        self._down = HostGradients(self._host)
        kinds = MOMENTS.get(settings.name, ())
        shapes = [local(parameter).shape for _, parameter in named]
        self.file = StateFile(folder, shapes, len(kinds))
        self._numbers = {name: number for number, (name, _) in enumerate(named)}
        super().__init__(named, settings)
        for number, leaf in enumerate(self.leaves):
            state = dict(zip(kinds, self.file.states(number)[1:], strict=True))
            if settings.name in COUNTED:
                state["step"] = torch.zeros(())
            if state:
                self.inner.state[leaf.value] = state
        for bucket in self.file.buckets:
            self.file.leave(bucket.states)
        self.file.settle()

    @torch.no_grad()
    def step(self, gradients: Mapping[str, Tensor]) -> None:
        """One update; returns when the weights are on their way back."""
        self._down.begin()
        for name, gradient in gradients.items():
            self._down.take(name, gradient)
        sums, following = self._down.sums(), iter(self.file.buckets)
        self._ahead(next(following, None))
        for bucket in self.file.buckets:
            self._ahead(next(following, None))
            self._update(bucket, sums)
            self.file.leave(bucket.states)
        self._down.begin()
        for one in self.reads:
            one.again()

    def read_for(self, stage: nn.Module, *, passes: bool) -> None:
        """Bring the shards of *stage* from the file before they are gathered, for all
        *passes* or the first one of a step."""
        leaves = enumerate(self.leaves)
        members = {id(leaf.parameter): number for number, leaf in leaves}
        self.reads.append(ShardReads(stage, self.file, members, passes=passes))

    def _ahead(self, bucket: Bucket | None) -> None:
        if bucket is not None:
            self.file.ahead(bucket.states)

    def _update(self, bucket: Bucket, sums: Mapping[str, Tensor]) -> None:
        leaves = [self.leaves[member] for member in bucket.members]
        for leaf in leaves:
            leaf.attach(sums[leaf.name])
        self.inner.step()  # those without a gradient are passed over
        for leaf in leaves:
            leaf.value.grad = None
            if leaf.master:
                self._host.up(leaf.value.detach(), local(leaf.parameter))
        self._host.arrived()

    def _leaf(self, name: str, parameter: nn.Parameter) -> Leaf:
        place = self.file.states(self._numbers[name])[0]
        value = nn.Parameter(place.copy_(local(parameter)))
        if self._shards:
            assert isinstance(parameter, DTensor)
            # `fully_shard` asks for its shards anew before the first gather.
            parameter._local_tensor = place
        return Leaf(name, parameter, value, master=not self._shards)
