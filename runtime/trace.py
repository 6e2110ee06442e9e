"""A trace of one step by torch's profiler, for Perfetto or chrome://tracing."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from torch.profiler import ProfilerActivity, profile

from runtime.memory import quiet


@contextmanager
def traced(folder: Path, rank: int, device: torch.device) -> Iterator[None]:
    """Write what the body does to *folder*/rank-N.json."""
    activities = [ProfilerActivity.CPU]
    if device.type == "cuda":
        activities.append(ProfilerActivity.CUDA)
    with quiet():
        profiler = profile(activities=activities, record_shapes=True)
        profiler.start()
    yield
    with quiet():
        profiler.stop()
    folder.mkdir(parents=True, exist_ok=True)
    profiler.export_chrome_trace(str(folder / f"rank-{rank}.json"))
