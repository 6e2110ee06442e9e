"""A worker process: its rank, device and process group, and what it leaves at its end.

It leaves the launcher `words`, overwritten all the time, so that a killed worker is
known by the action it was in, and `failure`, the error that it gave up with. When one
worker dies the others lose it, and are then ended by the agent. Of all that died the
cause is reported: a worker killed from outside before one that failed by itself, before
one that lost its peers, before one that the agent ended.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import re
import signal
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from functools import lru_cache
from pathlib import Path
from signal import SIGKILL, SIGTERM, Signals

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import HashStore, PrefixStore, Store, TCPStore

from profiles.errors import MeshwrightError, RunFailed, Unsupported
from profiles.system import keep_heap

FOLDER = "MESHWRIGHT_WORKER_FOLDER"  # the variable that names it to the worker
LAUNCHER = "MESHWRIGHT_LAUNCHER"  # the one that has the launcher's process id
_WORDS, _FAILURE = "words", "failure"
_WORDS_BYTES = 256


class Status:
    """A worker's last words: memory shared with a file, so they outlive a SIGKILL."""

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder
        self._shared: mmap.mmap | None = None
        if folder is not None:
            with open(folder / _WORDS, "w+b") as file:
                file.truncate(_WORDS_BYTES)
                self._shared = mmap.mmap(file.fileno(), _WORDS_BYTES)

    def say(self, text: str) -> None:
        """What this worker is about to do; costs about a microsecond."""
        if self._shared is not None:
            self._shared[:] = text.encode()[:_WORDS_BYTES].ljust(_WORDS_BYTES, b"\0")

    def fail(self, error: BaseException) -> None:
        """Why this worker gives up, and when: the first of several is the cause."""
        if self._folder is not None:
            text = str(error) or type(error).__name__
            kind = "" if isinstance(error, MeshwrightError) else type(error).__name__
            left = f"{time.time_ns()}\n{kind}\n{text}\n"
            (self._folder / _FAILURE).write_text(left, encoding="utf-8")


@lru_cache(maxsize=1)
def status(rank: int) -> Status:
    """The last words of this process, which is *rank*; nowhere, without a launcher."""
    folder = os.environ.get(FOLDER)
    if folder is None or os.environ.get("RANK") != str(rank):
        return Status(None)
    return Status(Path(folder))


def words_in(folder: Path) -> str:
    """The last words of the worker that had *folder*."""
    try:
        raw = (folder / _WORDS).read_bytes()
    except OSError:
        return "its start"
    return raw.rstrip(b"\0").decode(errors="replace")


def failure_in(folder: Path) -> tuple[int, str] | None:
    """When (ns) and why the worker that had *folder* gave up, if it could say so."""
    try:
        left = (folder / _FAILURE).read_text(encoding="utf-8", errors="replace")
        time_ns, kind, text = left.split("\n", 2)
        return int(time_ns), f"{kind}: {text}" if kind else text
    except (OSError, ValueError):
        return None


STDERR = "stderr.log"
_LONGEST = 300
_LOG_BYTES = 16384  # of the end of a log file
_LOST_PEER = re.compile(
    r"connection (closed|reset|refused)|broken pipe|timed? ?out|did not meet",
    re.IGNORECASE,
)
_TELLING = re.compile(r"^(\w+\.)*\w*(Error|Exception)\b|what\(\):")
_SOURCE_LINE = re.compile(r"\[\S+\.(cc|cpp|h|hpp):\d+\] ")


@dataclass(frozen=True, slots=True, kw_only=True)
class Casualty:
    """A worker that ended badly."""

    rank: int
    exit_code: int  # negative: the signal that ended it
    doing: str
    error: str
    time_ns: int
    log: Path

    @property
    def remove(self) -> int:
        """How far from the cause: 0 is killed from outside, 3 is ended by the agent."""
        if self.exit_code < 0:
            return 3 if self.exit_code == -SIGTERM else 0
        return 2 if _LOST_PEER.search(self.error) else 1

    def __str__(self) -> str:
        error = f": {self.error}" if self.error else ""
        return f"rank {self.rank} {ending(self.exit_code)} in {self.doing}{error}"


def told(ends: Mapping[int, tuple[int, int]], folders: Mapping[int, Path]) -> str:
    """One line on the workers that failed.

    *ends* has the exit code and the time (ns) by rank, *folders* what they left.
    """
    casualties = sorted(
        (_casualty(rank, *end, folders[rank]) for rank, end in ends.items()),
        key=lambda one: (one.remove, one.time_ns),
    )
    first, others = casualties[0], casualties[1:]
    line = str(first)
    if first.remove >= 2 and others:  # it missed the others: where were they?
        line += "".join(f"; rank {one.rank} was in {one.doing}" for one in others[:3])
    return f"{line}; its output: {first.log}"


def ending(exit_code: int) -> str:
    """How a process ended.

    >>> ending(3), ending(-11)
    ('ended with exit code 3', 'was killed by SIGSEGV')
    """
    if exit_code >= 0:
        return f"ended with exit code {exit_code}"
    known = {number.value: number.name for number in Signals}
    name = known.get(-exit_code, f"signal {-exit_code}")
    memory = " (as the kernel does when memory runs out)"
    return f"was killed by {name}{memory if -exit_code == SIGKILL else ''}"


def _casualty(rank: int, exit_code: int, time_ns: int, folder: Path) -> Casualty:
    log = folder / STDERR
    left = failure_in(folder)
    when, error = left or (time_ns, _last_line(log))
    return Casualty(
        rank=rank,
        exit_code=exit_code,
        doing=_clean(words_in(folder)),
        error=_clean(error),
        time_ns=when,
        log=log,
    )


def _last_line(log: Path) -> str:
    """The last line that names an error, else the last line; empty if there is none."""
    try:
        with log.open("rb") as file:
            file.seek(max(0, log.stat().st_size - _LOG_BYTES))
            lines = file.read().decode(errors="replace").splitlines()
    except OSError:
        return ""
    lines = [line.strip() for line in lines if line.strip()]
    telling = [line for line in lines if _TELLING.search(line)]
    return (telling or lines or [""])[-1]


def _clean(text: str) -> str:
    """Printable, on one line, and without the source files of libraries."""
    line = _SOURCE_LINE.sub("", " ".join(text.split()))
    shown = "".join(letter if letter.isprintable() else "?" for letter in line)
    return shown if len(shown) <= _LONGEST else f"{shown[:_LONGEST]}…"


_PARENT_DEATH = 1  # PR_SET_PDEATHSIG of prctl(2)


@dataclass(frozen=True, slots=True, kw_only=True)
class Worker:
    """Who this process is among the processes of the run."""

    rank: int
    world_size: int
    device: torch.device


@contextmanager
def process_group(
    device: str = "cpu", *, timeout_s: float, threads: int | None = None
) -> Iterator[Worker]:
    """The default process group of this run: gloo, and NCCL for ``cuda`` tensors.

    A collective that waits longer than *timeout_s* raises. Without torchrun's variables
    this is the only rank. An error inside is left for the launcher to read.
    Raises Unsupported for a device that is not there, RunFailed if ranks do not meet.
    """
    _end_with_launcher()
    if device == "cpu":
        keep_heap()
    if threads is not None:
        torch.set_num_threads(threads)
    said = status(_number("RANK", 0))
    said.say("joining the process group")
    try:
        worker = Worker(
            rank=_number("RANK", 0),
            world_size=_number("WORLD_SIZE", 1),
            device=local_device(device),
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


def restarts() -> int:
    """How often the workers of this run were started again."""
    return _number("TORCHELASTIC_RESTART_COUNT", 0)


def _join(worker: Worker, timeout: timedelta) -> None:
    cuda = worker.device.type == "cuda"
    if cuda:
        torch.cuda.set_device(worker.device)
    try:
        dist.init_process_group(
            "cpu:gloo,cuda:nccl" if cuda else "gloo",
            store=_store(worker, timeout),
            rank=worker.rank,
            world_size=worker.world_size,
            timeout=timeout,
        )
    except (RuntimeError, ValueError) as error:
        reason = str(error).strip().splitlines()[0]
        raise RunFailed(
            f"rank {worker.rank} did not meet the {worker.world_size} ranks of the "
            f"run within {timeout.total_seconds():.0f} s: {reason}"
        ) from error


def _store(worker: Worker, timeout: timedelta) -> Store:
    """Where ranks find each other; an own part of it for every restart.

    The launcher's store outlives a restart, and with it the addresses of dead ranks.
    """
    if "MASTER_ADDR" not in os.environ:
        return HashStore()
    hosted = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    shared = TCPStore(
        os.environ["MASTER_ADDR"],
        _number("MASTER_PORT", 0),
        worker.world_size,
        is_master=worker.rank == 0 and not hosted,
        timeout=timeout,
    )
    run = os.environ.get("TORCHELASTIC_RUN_ID", "run")
    return PrefixStore(f"meshwright/{run}/{restarts()}", shared)


def local_device(kind: str) -> torch.device:
    """This rank's device: ``cpu``, or its own of the ``cuda`` devices."""
    if kind == "cpu":
        return torch.device("cpu")
    local_rank = _number("LOCAL_RANK", 0)
    devices = torch.cuda.device_count() if kind == "cuda" else 0
    if local_rank >= devices:
        raise Unsupported(
            f"device {kind} for local rank {local_rank} is not there; this machine has "
            f"cpu and {torch.cuda.device_count()} cuda"
        )
    return torch.device("cuda", local_rank)


def _end_with_launcher() -> None:
    """Be killed when the launcher is (Linux only), and at once on Ctrl-C.

    Python's own handler would wait for the collective under way.
    """
    if FOLDER not in os.environ:
        return
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PARENT_DEATH, signal.SIGKILL)
        if os.getppid() != _number(LAUNCHER, os.getppid()):
            os._exit(1)  # it was killed while this process loaded torch
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, signal.SIG_DFL)


def _number(variable: str, default: int) -> int:
    return int(os.environ.get(variable, default))
