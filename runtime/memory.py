"""The most bytes alive in tensor storages during a step.

CUDA counts them itself. On a CPU PyTorch's profiler reports every allocation while it
runs, temporary ones inside operators too; what was alive before is counted by walking
the tensors that Python can reach. One step is watched, and left out of the timings.
"""

from __future__ import annotations

import gc
import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor

from profiles.units import KiB


@dataclass(slots=True)
class Peak:
    """Filled when the watched step has ended; bytes."""

    allocated: int = 0
    reserved: int = 0
    device: int = 0  # what the device shows as used: context and all


@contextmanager
def watched(device: torch.device) -> Iterator[Peak]:
    """Watch the body; the peak is known when it has ended."""
    watch = _watched_cuda if device.type == "cuda" else _watched_cpu
    with watch(device) as peak:
        yield peak


def alive_bytes() -> int:
    """Bytes of all distinct tensor storages that Python reaches."""
    storages = {}
    for item in gc.get_objects():
        if type(item) in (Tensor, torch.nn.Parameter):
            storage = item.untyped_storage()
            storages[storage.data_ptr()] = storage.nbytes()
    return sum(storages.values())


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
def _watched_cpu(device: torch.device) -> Iterator[Peak]:
    peak = Peak()
    gc.collect()
    before = alive_bytes()
    with _quiet():
        profiler = torch.profiler.profile(
            activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True
        )
        profiler.start()
    yield peak
    with _quiet():
        profiler.stop()
    changes = _changes(profiler)
    peak.allocated = before + max(accumulate(changes, initial=0))
    peak.reserved = peak.device = peak.allocated


def _changes(profiler: torch.profiler.profile) -> list[int]:
    """Bytes taken (or freed, negative), in the order of time."""
    assert profiler.profiler is not None
    results = profiler.profiler.kineto_results
    assert results is not None
    events: list[Any] = results.events()  # its stubs do not know of bytes
    found = [
        (event.start_ns(), event.nbytes())
        for event in events
        if event.name() == "[memory]"
    ]
    return [size for _, size in sorted(found, key=lambda pair: pair[0])]


@contextmanager
def _quiet() -> Iterator[None]:
    """The profiler's C++ writes lines to standard error; they help nobody."""
    kept, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nowhere)
