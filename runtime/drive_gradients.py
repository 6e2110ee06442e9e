"""`DriveGradients`: gradients of a step added up in the file that has the states.

    a micro-batch   its gradients wait until they are a bucket; then the step's first
                    ones are written to their places, and later ones are added to what
                    is read from there
    the norm        reads them bucket by bucket   (`DiskOptimizer.turns`)
    the update      finds them beside the states  (`DiskOptimizer.step`)

So at most a bucket of them is in memory, whatever the model's size (ZeRO-Infinity:
Rajbhandari et al., SC 2021, section 5.2.2).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager

from torch import Tensor

from profiles.drive import BUCKET_BYTES
from runtime.disk_states import StateFile


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
