"""Gradients on their way to the host: sent down one by one, added up there.

On CUDA a gradient goes through pinned memory beside what the device computes; those of
further micro-batches are added to it on the host when they have come. On a CPU, whose
memory is the host's, they are there as they are made. They are added up in memory
(`InMemory`), or on a drive (`runtime.offload.gradients`).

`DriveGradients`: gradients of a step added up in the file that has the states.

    a micro-batch   its gradients wait until they are a bucket; then the step's first
                    ones are written to their places, and later ones are added to what
                    is read from there
    the norm        reads them bucket by bucket   (`DiskOptimizer.turns`)
    the update      finds them beside the states  (`DiskOptimizer.step`)

So at most a bucket of them is in memory, whatever the model's size (ZeRO-Infinity:
Rajbhandari et al., SC 2021, section 5.2.2).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, Final, Protocol

import torch
from torch import Tensor

from profiles.system import BUCKET_BYTES
from runtime.offload.host_copy import Host
from runtime.offload.state_file import StateFile


class DriveGradients:
    """Of some parameters, which *numbers* makes members of *file* by name."""

    def __init__(self, file: StateFile, numbers: Mapping[str, int]) -> None:
        self._file, self._numbers = file, numbers
        self._there: set[str] = set()  # what of this step is in the file
        self._fresh: dict[str, Tensor] = {}  # and what waits to be
        self._fresh_bytes = 0

    def begin(self) -> None:
        self._there, self._fresh, self._fresh_bytes = set(), {}, 0

    def add(self, name: str, made: Tensor) -> None:
        if name in self._fresh or self._fresh_bytes + made.nbytes > BUCKET_BYTES:
            self._write()
        if name in self._there:
            for part in self._file.gradient_parts([self._numbers[name]]):
                self._file.ahead(part)
        self._fresh[name] = made
        self._fresh_bytes += made.nbytes

    def all(self) -> Mapping[str, Tensor]:
        """Each gradient, by name: in the file, and only there."""
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

    def _write(self) -> None:
        members = {name: self._numbers[name] for name in self._fresh}
        for name, made in self._fresh.items():
            if name in self._there:
                self._file.gradient(members[name]).add_(made)
            else:
                self._file.put_gradient(members[name], made)
        for part in self._file.gradient_parts(members.values()):
            self._file.leave(part)
        self._there |= members.keys()
        self._fresh, self._fresh_bytes = {}, 0


ON_THEIR_WAY: Final = 64  # copies; the oldest is waited for before another one begins


class Sums(Protocol):
    """What adds gradients up that have come."""

    def begin(self) -> None:
        """Forget the step before."""

    def add(self, name: str, made: Tensor) -> None:
        """One more of the parameter *name*."""

    def all(self) -> Mapping[str, Tensor]:
        """What was added up, by name."""

    def changing(self, names: Collection[str]) -> AbstractContextManager[None]:
        """Around a change, in place, of some of `all`."""


class InMemory:
    """Sums in the host's memory."""

    def __init__(self) -> None:
        self._sums: dict[str, Tensor] = {}

    def begin(self) -> None:
        self._sums = {}

    def add(self, name: str, made: Tensor) -> None:
        known = self._sums.setdefault(name, made)
        if known is not made:
            known.add_(made)

    def all(self) -> Mapping[str, Tensor]:
        return self._sums

    def changing(self, names: Collection[str]) -> AbstractContextManager[None]:
        return nullcontext()


class HostGradients:
    """This rank's gradients of a step, by the parameter's name; `begin` before it.

    *sums* adds them up, while at most *most* are on their way.
    """

    def __init__(
        self, host: Host, sums: Sums | None = None, *, most: int = ON_THEIR_WAY
    ) -> None:
        self._host, self._most = host, most
        self._sums = InMemory() if sums is None else sums
        self._coming: deque[tuple[str, Tensor, Any]] = deque()

    def begin(self) -> None:
        """Forget the step before."""
        self._settle(0)
        self._sums.begin()

    @torch.no_grad()
    def take(self, name: str, gradient: Tensor) -> None:
        """Send a micro-batch's *gradient* down; the device may go on."""
        if not gradient.is_cuda:
            self._sums.add(name, gradient)
            return
        there = self._host.down(gradient)
        self._coming.append((name, there, self._host.stream.record_event()))
        self._settle(self._most)

    @torch.no_grad()
    def sums(self) -> Mapping[str, Tensor]:
        """All that was taken, added up; waits for what is on its way."""
        self._settle(0)
        return self._sums.all()

    def changing(self, names: Collection[str]) -> AbstractContextManager[None]:
        """Around a change, in place, of those of `sums` that are called *names*."""
        return self._sums.changing(names)

    def _settle(self, most: int) -> None:
        """Wait until at most so many are on their way."""
        while len(self._coming) > most:
            name, there, event = self._coming.popleft()
            event.synchronize()
            self._sums.add(name, there)
