"""A trace of one step by torch's profiler, for Perfetto or chrome://tracing."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from errno import ENOSPC
from pathlib import Path
from typing import Final

import torch
from torch.profiler import ProfilerActivity, profile

from profiles.files import unwritten
from runtime.trace.peak_memory import quiet

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
