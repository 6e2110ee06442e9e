"""The most bytes alive in tensor storages during a step, and torch's trace of one.

CUDA counts bytes itself. On a CPU PyTorch's profiler reports every allocation while it
runs, temporary ones inside operators too; what was alive before is counted by walking
the tensors that Python can reach. One step is watched, and left out of the timings.
"""

from __future__ import annotations

import gc
import os
import resource
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from errno import ENOSPC
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor
from torch.profiler import ProfilerActivity, profile

from profiles.files import unwritten
from profiles.system import is_on_drive
from profiles.units import KiB


@dataclass(slots=True)
class Peak:
    """Filled when the watched step has ended; bytes."""

    allocated: int = 0
    reserved: int = 0
    device: int = 0  # what the device shows as used: context and all


def watched(device: torch.device) -> AbstractContextManager[Peak]:
    """Watch the body; the peak is known when it has ended."""
    return _watched_cuda(device) if device.type == "cuda" else _watched_cpu()


def alive_bytes() -> int:
    """Bytes of all distinct tensor storages that Python reaches, but for those that are
    in files on drives."""
    storages = {}
    for item in gc.get_objects():
        if type(item) in (Tensor, torch.nn.Parameter):
            storage = item.untyped_storage()
            storages[storage.data_ptr()] = storage.nbytes()
    return sum(size for at, size in storages.items() if not is_on_drive(at))


def resident_bytes() -> int:
    """The most memory that the process ever held, resident."""
    return int(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * KiB)


@contextmanager
def _watched_cuda(device: torch.device) -> Iterator[Peak]:
    peak = Peak()
    torch.cuda.reset_peak_memory_stats(device)
    yield peak
    torch.cuda.synchronize(device)
    peak.allocated = torch.cuda.max_memory_allocated(device)
    peak.reserved = torch.cuda.max_memory_reserved(device)
    free, total = torch.cuda.mem_get_info(device)
    peak.device = total - free


@contextmanager
def _watched_cpu() -> Iterator[Peak]:
    peak = Peak()
    gc.collect()
    before = alive_bytes()
    with quiet():
        profiler = torch.profiler.profile(
            activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True
        )
        profiler.start()
    yield peak
    with quiet():
        profiler.stop()
    peak.allocated = before + most_alive(_changes(profiler))
    peak.reserved = peak.device = peak.allocated


@dataclass(frozen=True, slots=True)
class Change:
    """A block taken or, where *size* is negative, freed."""

    at_ns: int
    pointer: int
    size: int
    until_ns: int | None = None  # end of the collective that took it for itself


def most_alive(changes: Iterable[Change]) -> int:
    """The most bytes alive at once of what *changes* took, in the order of time.

    The profiler does not see what gloo's threads free: a collective's own blocks, where
    they let go of those last. Such a block went with its collective, which is waited
    for; any other one whose free went unseen, when its place was taken.
    """
    ordered = sorted(changes, key=lambda one: one.at_ns)
    ordered = sorted([*ordered, *_unseen(ordered)], key=lambda one: one.at_ns)
    alive: dict[int, int] = {}
    total = most = 0
    for one in ordered:
        total += max(one.size, 0) - alive.pop(one.pointer, 0)
        if one.size > 0:
            alive[one.pointer] = one.size
        most = max(most, total)
    return most


def _unseen(changes: Iterable[Change]) -> list[Change]:
    """The frees, unseen, of what collectives took for themselves."""
    found: list[Change] = []
    held: dict[int, Change] = {}
    for one in changes:
        before = held.pop(one.pointer, None)
        if one.size > 0:
            held[one.pointer] = one
            if before is not None:
                found.append(before)
    return [
        Change(one.until_ns, one.pointer, -one.size)
        for one in (*found, *held.values())
        if one.until_ns is not None
    ]


def _changes(profiler: torch.profiler.profile) -> list[Change]:
    """Every block that was taken or freed while *profiler* ran."""
    assert profiler.profiler is not None
    results = profiler.profiler.kineto_results
    assert results is not None
    found: list[Change] = []
    waiting: list[tuple[Any, int | None]] = [
        (event, None) for event in results.experimental_event_tree()
    ]
    while waiting:
        event, until_ns = waiting.pop()
        if event.name.startswith("c10d::"):
            until_ns = event.end_time_ns
        waiting += [(child, until_ns) for child in event.children]
        fields = event.extra_fields
        if type(fields).__name__ == "_ExtraFields_Allocation":
            found.append(
                Change(event.start_time_ns, fields.ptr, fields.alloc_size, until_ns)
            )
    return found


@contextmanager
def quiet() -> Iterator[None]:
    """The profiler's C++ writes lines to standard error; they help nobody."""
    kept, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nowhere)


_END_BYTES: Final = 64


@contextmanager
def traced(folder: Path, rank: int, device: torch.device) -> Iterator[None]:
    """Write what the body does to *folder*/rank-N.json; raises InvalidFile where it
    finds no room, of which torch's profiler says nothing."""
    activities = [ProfilerActivity.CPU]
    if device.type == "cuda":
        activities.append(ProfilerActivity.CUDA)
    with quiet():
        profiler = profile(activities=activities, record_shapes=True)
        profiler.start()
    yield
    with quiet():
        profiler.stop()
    path = folder / f"rank-{rank}.json"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        profiler.export_chrome_trace(str(path))
        _require_whole(path)
    except OSError as error:
        path.unlink(missing_ok=True)
        raise unwritten(path, "--trace", error) from error


def _require_whole(path: Path) -> None:
    """Raise OSError for a trace that is cut."""
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - _END_BYTES))
        if not file.read().rstrip().endswith(b"}"):
            raise OSError(ENOSPC, os.strerror(ENOSPC))
