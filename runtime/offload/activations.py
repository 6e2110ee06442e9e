"""`Scratch`: saved tensors that wait in a file of a drive for their backward.

    put    begins to write a tensor to a free place of the file
    start  begins to read it back, a layer ahead (`runtime.remat.saved_tensors`)
    back   gives it, and its place to the next one

Places are whole pages of slabs, which are made as a step first asks for them and used
again by the ones after it. On CUDA a tensor goes through pinned memory, and a thread
of its own writes and reads behind what the device computes: at most two layers' tensors
wait to be written, then the next one waits for them. A CPU writes where it is, into the
page cache, which the kernel writes down behind what it computes (ZeRO-Infinity's
overlap: Rajbhandari et al., SC 2021, section 5.1.2).

`Tiers`: where a layer's saved tensors go, the host's memory or a drive.
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor

from profiles.system import BUCKET_BYTES, DriveFile, Part, default_folder, whole_pages
from runtime.offload.host import BUFFERS, Host, OnHost

ON_THEIR_WAY: Final = 32  # tensors: about two layers'


@dataclass(slots=True)
class _Slab:
    """A file, and what of it is *free*, in order, neighbours joined; and what was given
    *back* since, by whatever thread let go of it last."""

    file: DriveFile
    free: list[Part]
    back: deque[Part] = field(default_factory=deque)

    def take(self, size_bytes: int) -> Part | None:
        """The first free place of so many bytes."""
        if self.back:
            self._join()
        for number, part in enumerate(self.free):
            if part.size_bytes >= size_bytes:
                rest = Part(part.first + size_bytes, part.size_bytes - size_bytes)
                self.free[number : number + 1] = [rest] if rest.size_bytes else []
                return Part(part.first, size_bytes)
        return None

    def _join(self) -> None:
        came = [self.back.popleft() for _ in range(len(self.back))]
        whole: list[Part] = []
        for one in sorted((*self.free, *came), key=lambda one: one.first):
            before = whole[-1] if whole else None
            if before and before.first + before.size_bytes == one.first:
                whole[-1] = Part(before.first, before.size_bytes + one.size_bytes)
            else:
                whole.append(one)
        self.free = whole


class Scratch:
    """Room in files of *folder* for what leaves the memory of *host*'s device."""

    def __init__(self, folder: Path, host: Host) -> None:
        self.host = host
        self._folder = folder
        self.slabs: list[_Slab] = []
        on_cuda = host.stream is not None
        # One thread: what is read was asked to be written before.
        self.thread = ThreadPoolExecutor(1, "drive") if on_cuda else None
        self._layers: deque[list[Future[None]]] = deque([[]])

    def put(self, flat: Tensor) -> OnDrive:
        """*flat*, on its way to the drive."""
        return OnDrive(flat, self)

    def sent(self) -> None:
        """A layer has begun all its writes."""
        self._layers.append([])
        while len(self._layers) > BUFFERS:
            for one in self._layers.popleft():
                one.result()

    def later(self, task: Callable[..., None], *given: Any) -> None:
        """Have the thread write; `sent` waits for it in time."""
        assert self.thread is not None
        self._layers[-1].append(self.thread.submit(task, *given))

    def place(self, size_bytes: int) -> tuple[_Slab, Part]:
        """A free place; raises Unsupported where the drive has none."""
        wanted = whole_pages(size_bytes)
        for slab in self.slabs:
            part = slab.take(wanted)
            if part is not None:
                return slab, part
        size = max(wanted, BUCKET_BYTES)
        file = DriveFile(self._folder, size, unsettled=ON_THEIR_WAY)
        slab = _Slab(file, [Part(0, size)])
        self.slabs.append(slab)
        part = slab.take(wanted)
        assert part is not None, "a new slab is large enough"
        return slab, part


class OnDrive:
    """A 1-D tensor that is on a drive."""

    def __init__(self, flat: Tensor, scratch: Scratch) -> None:
        self._scratch, self._dtype, self._count = scratch, flat.dtype, flat.numel()
        self._slab, self._part = scratch.place(flat.nbytes)
        self._came: Future[Any] | None = None
        self._begun = False
        weakref.finalize(self, self._slab.back.append, self._part)
        if scratch.thread is None:
            _write(self._slab, self._part, flat)
            return
        there = scratch.host.down(flat)
        event = scratch.host.stream.record_event()
        scratch.later(_write_when, event, self._slab, self._part, there)

    def start(self) -> None:
        """Begin to bring it back."""
        if self._begun:
            return
        self._begun = True
        if self._scratch.thread is None:
            self._slab.file.ahead(self._part)
        else:
            self._came = self._scratch.thread.submit(self._up)

    def back(self) -> Tensor:
        """It, on the device."""
        self.start()
        if self._came is None:
            return self._read(torch.empty(self._count, dtype=self._dtype))
        here, event = self._came.result()
        current = torch.cuda.current_stream(self._scratch.host.device)
        current.wait_event(event)
        here.record_stream(current)
        return here  # type: ignore[no-any-return]

    def _up(self) -> tuple[Tensor, Any]:
        """From the drive to the device, by the thread."""
        host = self._scratch.host
        self._slab.file.ahead(self._part)
        size = torch.Size((self._count,))
        there = self._read(host.empty(size, self._dtype))
        with torch.cuda.stream(host.stream):
            here = there.to(host.device, non_blocking=True)
            return here, host.stream.record_event()

    def _read(self, into: Tensor) -> Tensor:
        file, part = self._slab.file, self._part
        size = into.numel() * into.itemsize
        there = torch.frombuffer(
            file.map, dtype=torch.uint8, count=size, offset=part.first
        )
        into.view(torch.uint8).copy_(there)
        del there
        file.forget(part)
        return into


def _write(slab: _Slab, part: Part, flat: Tensor) -> None:
    slab.file.write(part.first, flat.contiguous().view(torch.uint8).numpy())
    slab.file.leave(part)


def _write_when(event: Any, slab: _Slab, part: Part, there: Tensor) -> None:
    """Once the copy to the host has come so far as *event*."""
    event.synchronize()
    _write(slab, part, there)


class Tiers:
    """The copies of one device; what goes to a drive is in files of *folder*."""

    def __init__(self, device: torch.device, folder: Path | None = None) -> None:
        self.host = Host(device)
        self.scratch = Scratch(folder or default_folder(), self.host)

    def away(self, flat: Tensor, tier: str | None) -> OnHost | OnDrive:
        """*flat*, 1-D, on its way to *tier*."""
        if tier == "nvme":
            return self.scratch.put(flat)
        return OnHost(flat, self.host)

    def sent(self) -> None:
        """A layer has begun all its copies out."""
        self.host.sent()
        self.scratch.sent()
