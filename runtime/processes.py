"""What a worker process is: its rank, its process group, and its last words.

`runtime.launcher` starts workers with torchrun's variables (RANK, LOCAL_RANK …) and one
of its own, a folder for what a worker has to say: `words`, overwritten all the time, so
that a killed worker is known by the action it was in, and `failure`, its error.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from functools import lru_cache
from pathlib import Path

import torch
import torch.distributed as dist

from profiles.errors import MeshwrightError, RunFailed, Unsupported

SAYS = "MESHWRIGHT_WORKER_FOLDER"
WORDS, FAILURE = "words", "failure"
WORDS_BYTES = 256
_PARENT_DEATH = 1  # PR_SET_PDEATHSIG of prctl(2)


@dataclass(frozen=True, slots=True, kw_only=True)
class Worker:
    """Who this process is among the processes of the run."""

    rank: int
    world_size: int
    local_rank: int
    device: torch.device


class Status:
    """A worker's last words: memory shared with a file, so they outlive a SIGKILL."""

    def __init__(self, folder: Path | None) -> None:
        self._folder, self._shared = folder, None
        if folder is not None:
            with open(folder / WORDS, "w+b") as file:
                file.truncate(WORDS_BYTES)
                self._shared = mmap.mmap(file.fileno(), WORDS_BYTES)

    def say(self, text: str) -> None:
        """What this worker is about to do; costs about a microsecond."""
        if self._shared is not None:
            self._shared[:] = text.encode()[:WORDS_BYTES].ljust(WORDS_BYTES, b"\0")

    def fail(self, error: BaseException) -> None:
        """Why this worker gives up, for the launcher; the time tells who was first."""
        if self._folder is not None:
            text = str(error) or type(error).__name__
            kind = "" if isinstance(error, MeshwrightError) else type(error).__name__
            lines = f"{time.time_ns()}\n{kind}\n{text}\n"
            (self._folder / FAILURE).write_text(lines, encoding="utf-8")


@lru_cache(maxsize=1)
def status(rank: int) -> Status:
    """The last words of this process; nowhere, if it has no launcher."""
    folder = os.environ.get(SAYS)
    own = folder is not None and os.environ.get("RANK") == str(rank)
    return Status(Path(folder) if folder is not None and own else None)


@contextmanager
def process_group(
    timeout_s: float, *, device: str = "cpu", threads: int | None = None
) -> Iterator[Worker]:
    """The default process group of this run: gloo, and NCCL for ``cuda`` tensors.

    A collective that waits longer than *timeout_s* raises. Without torchrun's variables
    this is the only rank. An error inside is left for the launcher to read.
    Raises Unsupported for a device that is not there, RunFailed if ranks do not meet.
    """
    _end_with_launcher()
    rank, world_size = _number("RANK", 0), _number("WORLD_SIZE", 1)
    said = status(rank)
    try:
        said.say("joining the process group")
        if threads is not None:
            torch.set_num_threads(threads)
        worker = Worker(
            rank=rank,
            world_size=world_size,
            local_rank=_number("LOCAL_RANK", 0),
            device=_device(device, _number("LOCAL_RANK", 0)),
        )
        _join(worker, timedelta(seconds=timeout_s))
        yield worker
    except BaseException as error:
        if not isinstance(error, SystemExit):
            said.fail(error)
        if device == "cpu" and dist.is_initialized():
            dist.destroy_process_group()  # NCCL would wait for collectives under way
        raise
    dist.destroy_process_group()
    said.say("done")


def _join(worker: Worker, timeout: timedelta) -> None:
    backend = "gloo"
    if worker.device.type == "cuda":
        torch.cuda.set_device(worker.device)
        backend = "cpu:gloo,cuda:nccl"
    try:
        dist.init_process_group(
            backend,
            store=_store(worker, timeout),
            rank=worker.rank,
            world_size=worker.world_size,
            timeout=timeout,
            device_id=worker.device if worker.device.type == "cuda" else None,
        )
    except (RuntimeError, ValueError) as error:
        reason = str(error).strip().splitlines()[0]
        raise RunFailed(
            f"rank {worker.rank} did not meet the {worker.world_size} ranks of the "
            f"run within {timeout.total_seconds():.0f} s: {reason}"
        ) from error


def _store(worker: Worker, timeout: timedelta) -> dist.Store:
    """Where ranks find each other; an own part of it for every restart.

    The launcher's store outlives a restart, and with it the addresses of dead ranks.
    """
    if "MASTER_ADDR" not in os.environ:
        return dist.HashStore()
    hosted = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    shared = dist.TCPStore(
        os.environ["MASTER_ADDR"],
        _number("MASTER_PORT", 0),
        worker.world_size,
        is_master=worker.rank == 0 and not hosted,
        timeout=timeout,
    )
    run = os.environ.get("TORCHELASTIC_RUN_ID", "run")
    restart = _number("TORCHELASTIC_RESTART_COUNT", 0)
    return dist.PrefixStore(f"meshwright/{run}/{restart}", shared)


def _device(kind: str, local_rank: int) -> torch.device:
    if kind == "cpu":
        return torch.device("cpu")
    if kind != "cuda" or local_rank >= torch.cuda.device_count():
        raise Unsupported(
            f"device {kind}:{local_rank} is not there; this machine has cpu"
            + "".join(f", cuda:{one}" for one in range(torch.cuda.device_count()))
        )
    return torch.device("cuda", local_rank)


def _end_with_launcher() -> None:
    """Be killed when the launcher is (Linux only), and at once on Ctrl-C.

    Python's own handler would wait for the collective under way.
    """
    if SAYS not in os.environ:
        return
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PARENT_DEATH, signal.SIGKILL)
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, signal.SIG_DFL)


def _number(variable: str, default: int) -> int:
    return int(os.environ.get(variable, default))
