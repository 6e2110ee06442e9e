"""`Saver`: the checkpoints of a run, one after another, beside its training or not.

    training     copies its state to the host, and goes on
    the thread   tensors written → files hashed → all ranks' there → renamed

(As CheckFreq pipelines it: Mohan et al., FAST 2021, section 4.1.) One is under way at a
time; the copies have their memory for the life of the run. The thread makes its
collectives in a gloo group of its own, and gives way where cores are short. A
checkpoint that cannot be written costs the run a line, and the last good one stays.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from profiles.errors import InvalidFile
from runtime.checkpoint.agreement import Group
from runtime.checkpoint.checkpoint import Snapshot, store
from runtime.checkpoint.directory import Found, Retention
from runtime.checkpoint.manifest import Parent, as_parent
from runtime.optim import Optimizer, local

GIVES_WAY: Final = 10  # what the thread is nicer than training
# No rank waits long for another, whatever it writes: they are done together.
LONGEST: Final = timedelta(hours=2)


@dataclass(slots=True, kw_only=True)
class Saver:
    """Saves to *folder*, as *keep* says; *background*: on a thread, of a *group* of all
    ranks. *say* takes a line where one cannot be saved."""

    folder: Path
    keep: Retention
    say: Callable[[str], None]
    background: bool = False
    group: Group = None
    parent: Parent | None = None
    damaged: Collection[str] = ()
    failure: str | None = None  # of the newest that was to be saved
    _copies: dict[str, Tensor] = field(default_factory=dict)
    _thread: threading.Thread | None = None

    def __post_init__(self) -> None:
        if self.background and dist.is_initialized():
            self.group = dist.new_group(backend="gloo", timeout=LONGEST)

    def follow(self, found: Found) -> None:
        """The run goes on from *found*: what it saves next comes from there."""
        self.parent = as_parent(found.path, found.meta)
        self.damaged = found.damaged

    def save(
        self,
        *,
        step: int,
        parts: Sequence[nn.Module],
        optimizer: Optimizer | None,
        meta: Mapping[str, Any],
    ) -> None:
        """As `checkpoint.save`; returns when training may change what is saved."""
        self.wait()
        one = Snapshot.of(step, parts, optimizer, meta)
        if not self.background:
            self._store(one)
            return
        one = replace(one, tensors=self._copied(one.tensors))
        self._thread = threading.Thread(
            target=self._beside, args=(one,), name="checkpoint", daemon=True
        )
        self._thread.start()

    def wait(self, seconds: float | None = None) -> None:
        """Until nothing is under way, or for *seconds*."""
        if self._thread is not None:
            self._thread.join(seconds)
            if not self._thread.is_alive():
                self._thread = None

    @property
    def idle(self) -> bool:
        """Whether nothing is under way."""
        return self._thread is None or not self._thread.is_alive()

    def _beside(self, one: Snapshot) -> None:
        with suppress(OSError):
            if sys.platform == "linux":  # where a thread has a priority of its own
                os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), GIVES_WAY)
        try:
            self._store(one)
        except Exception as error:  # a rank was lost: training says so
            self.failure = f"{type(error).__name__}: {error}"

    def _store(self, one: Snapshot) -> None:
        one = replace(one, meta={**one.meta, "parent": self.parent})
        try:
            self.parent = store(self.folder, one, self.keep, self.damaged, self.group)
            self.failure = None
        except InvalidFile as error:
            self.failure = str(error)
            self.say(f"step {one.step} is not saved: {error}")

    def _copied(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Copies on the host, in the memory of those before."""
        made = {name: self._copy(name, one) for name, one in tensors.items()}
        if any(one.device.type == "cuda" for one in tensors.values()):
            torch.cuda.synchronize()
        return made

    def _copy(self, name: str, one: Tensor) -> Tensor:
        part = local(one)
        place = self._copies.get(name)
        if place is None or (place.shape, place.dtype) != (part.shape, part.dtype):
            place = torch.empty(
                part.shape, dtype=part.dtype, device="cpu", pin_memory=part.is_cuda
            )
            self._copies[name] = place
        place.copy_(part, non_blocking=True)
        if isinstance(one, DTensor):
            return DTensor(place, one._spec, requires_grad=False)
        return place
