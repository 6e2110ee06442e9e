"""What a worker process is: its rank, its device and its process group."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import HashStore, PrefixStore, Store, TCPStore

from profiles.errors import RunFailed, Unsupported
from profiles.system import keep_heap
from runtime.launch.failures import FOLDER, LAUNCHER, status

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
    Of several machines each attempt has a store of its own: restarts that one counts
    need not be those that another does.
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
    return PrefixStore(f"meshwright/{run}/{restarts() if hosted else 0}", shared)


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
