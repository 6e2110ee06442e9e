"""`DiskOptimizer`: masters and moments in a file, updated bucket by bucket.

    each bucket: its gradients go down, its states are read → updated by the host's
    cores, states written back → working weights come back

(ZeRO-Infinity: Rajbhandari et al., SC 2021, section 5.) Each step reads and writes
every state once. Gradients that are scattered are in the file before it
(`DriveGradients`), others on the device until their bucket's turn. Where
`fully_shard`'s shards are the masters they lie in the file themselves, and the next
gather reads them there.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeVar

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from profiles.system import BUCKET_BYTES
from runtime.offload.host import Host, HostGradients
from runtime.offload.state_file import Bucket, ShardReads, StateFile
from runtime.optim import Leaf, Make, Optimizer, Settings, local, scale

MOMENTS: Final[dict[str, tuple[str, ...]]] = {
    "adamw": ("exp_avg", "exp_avg_sq"),
    "adam": ("exp_avg", "exp_avg_sq"),
    "sgd-momentum": ("momentum_buffer",),
    "sgd": (),
}
COUNTED: Final = ("adamw", "adam")  # that keep the number of their steps
ON_THEIR_WAY: Final = 16  # gradients: about a layer's

Begun = TypeVar("Begun")


class DriveGradients(HostGradients):
    """Gradients of a step added up in *file*, whose members *numbers* knows by name.

        a micro-batch   its gradients wait until they are a bucket; then the step's
                        first ones are written to their places, and later ones are added
                        to what is read from there
        the norm        reads them bucket by bucket   (`DiskOptimizer.turns`)
        the update      finds them beside the states  (`DiskOptimizer.step`)

    So at most a bucket of them is in memory, whatever the model's size (ZeRO-Infinity:
    Rajbhandari et al., SC 2021, section 5.2.2).
    """

    most = ON_THEIR_WAY

    def __init__(self, host: Host, file: StateFile, numbers: Mapping[str, int]) -> None:
        super().__init__(host)
        self._file, self._numbers = file, numbers
        self._there: set[str] = set()  # what of this step is in the file
        self._waiting_bytes = 0  # of `_sums`, which wait to be

    def begin(self) -> None:
        super().begin()
        self._there, self._waiting_bytes = set(), 0

    def sums(self) -> Mapping[str, Tensor]:
        """Each gradient, by name: in the file, and only there."""
        super().sums()
        self._write()
        return {
            name: self._file.gradient(number)
            for name, number in self._numbers.items()
            if name in self._there
        }

    @contextmanager
    def changing(self, names: Collection[str]) -> Iterator[None]:
        parts = list(self._file.gradient_parts(self._numbers[one] for one in names))
        for part in parts:
            self._file.ahead(part)
        yield
        for part in parts:
            self._file.leave(part)

    def _add(self, name: str, made: Tensor) -> None:
        if name in self._sums or self._waiting_bytes + made.nbytes > BUCKET_BYTES:
            self._write()
        if name in self._there:
            for part in self._file.gradient_parts([self._numbers[name]]):
                self._file.ahead(part)
        self._sums[name] = made
        self._waiting_bytes += made.nbytes

    @torch.no_grad()
    def _write(self) -> None:
        members = {name: self._numbers[name] for name in self._sums}
        for name, made in self._sums.items():
            if name in self._there:
                self._file.gradient(members[name]).add_(made)
            else:
                self._file.put_gradient(members[name], made)
        for part in self._file.gradient_parts(members.values()):
            self._file.leave(part)
        self._there |= members.keys()
        self._sums, self._waiting_bytes = {}, 0


class DiskOptimizer(Optimizer):
    """As `Optimizer`, of parameters on *device*, its states in a file of *folder*;
    *shards* are masters themselves, which the file takes in, *gradients* wait in it
    too."""

    def __init__(
        self,
        parameters: Iterable[tuple[str, nn.Parameter]],
        settings: Settings,
        device: torch.device,
        folder: Path,
        *,
        shards: bool = False,
        gradients: bool = False,
        make: Make | None = None,
    ) -> None:
        named = list(parameters)
        self._host, self._shards = Host(device), shards
        self._gradients = gradients
        self.scales = not gradients  # in the file they stay as they are
        self.reads: list[ShardReads] = []
        kinds = MOMENTS.get(settings.name, ())
        shapes = [local(parameter).shape for _, parameter in named]
        self.file = StateFile(folder, shapes, len(kinds), gradients=gradients)
        self._numbers = {name: number for number, (name, _) in enumerate(named)}
        super().__init__(named, settings, make)
        self._kinds = kinds
        for number, leaf in enumerate(self.leaves):
            state = dict(zip(kinds, self.file.states(number)[1:], strict=True))
            if settings.name in COUNTED:
                state["step"] = torch.zeros(())
            if state:
                self.inner.state[leaf.value] = state
        self._leave_all()

    @torch.no_grad()
    def step(self, gradients: Mapping[str, Tensor], factor: float = 1.0) -> None:
        """One update; returns when the weights are on their way back."""
        if self.scales:
            scale(gradients.values(), factor)
            factor = 1.0
        begin = partial(self._begin, gradients)
        for bucket, down in _one_ahead(self.file.buckets, begin):
            self._update(bucket, down.sums(), factor)
            self.file.leave(bucket.states)
            if self._gradients:
                self.file.forget(bucket.gradients)
        for one in self.reads:
            one.again()

    def turns(self, gradients: Mapping[str, Tensor]) -> Iterator[Mapping[str, Tensor]]:
        if not self._gradients:
            yield gradients
            return
        for bucket, _ in _one_ahead(self.file.buckets, self._read_gradients):
            names = self._names(bucket)
            yield {name: gradients[name] for name in names if name in gradients}
            self.file.forget(bucket.gradients)

    @torch.no_grad()
    def load(self, state: dict[str, Any]) -> None:
        """As `Optimizer.load`, into the file."""
        super().load(state)
        for number, leaf in enumerate(self.leaves):
            _, *moments = self.file.states(number)
            loaded = self.inner.state.get(leaf.value, {})
            for kind, place in zip(self._kinds, moments, strict=True):
                if kind in loaded:
                    loaded[kind] = place.copy_(loaded[kind])
        self._leave_all()

    def _leave_all(self) -> None:
        for bucket in self.file.buckets:
            self.file.leave(bucket.states)
        self.file.settle()

    def take_scattered(self) -> HostGradients:
        """Takes a stage's gradients as they are scattered, and adds them up in the
        file."""
        assert self._gradients, "the file has places for them"
        return DriveGradients(self._host, self.file, self._numbers)

    def read_for(self, stage: nn.Module, *, passes: bool) -> None:
        """Bring the shards of *stage* from the file before they are gathered, for all
        *passes* or the first one of a step."""
        leaves = enumerate(self.leaves)
        members = {id(leaf.parameter): number for number, leaf in leaves}
        self.reads.append(ShardReads(stage, self.file, members, passes=passes))

    def _begin(self, gradients: Mapping[str, Tensor], bucket: Bucket) -> HostGradients:
        """Read *bucket* ahead, and send its gradients down."""
        self.file.ahead(bucket.whole)
        down = HostGradients(self._host)
        for name in self._names(bucket):
            if name in gradients:
                down.take(name, gradients[name])
        return down

    def _read_gradients(self, bucket: Bucket) -> None:
        self.file.ahead(bucket.gradients)

    def _names(self, bucket: Bucket) -> Sequence[str]:
        return [self.leaves[member].name for member in bucket.members]

    def _update(
        self, bucket: Bucket, made: Mapping[str, Tensor], factor: float
    ) -> None:
        held = (self.leaves[member] for member in bucket.members)
        leaves = [leaf for leaf in held if leaf.name in made]
        for leaf in leaves:
            gradient = made[leaf.name]
            leaf.attach(gradient if factor == 1 else gradient * factor)
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


def _one_ahead(
    buckets: Iterable[Bucket], begin: Callable[[Bucket], Begun]
) -> Iterator[tuple[Bucket, Begun]]:
    """Each bucket, and what *begin* gave for it while the one before had its turn."""
    begun: deque[tuple[Bucket, Begun]] = deque()
    for bucket in buckets:
        begun.append((bucket, begin(bucket)))
        if len(begun) > 1:
            yield begun.popleft()
    yield from begun
