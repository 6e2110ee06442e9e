"""`launch`: worker processes under torch's elastic agent, and what became of them.

One agent a machine starts its workers, restarts all of them when one dies, and ends
them when the command ends. Each worker writes to its own log files; what rank 0 prints
is shown as it comes, and what the first worker that died had to say is in the error.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
import uuid
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import mkdtemp
from typing import Any, TextIO

from profiles.errors import Contradiction, InvalidQuestion, RunFailed
from runtime.casualties import told
from runtime.worker_logs import Relay, elastic_logs_silenced, logs_of

MOST_RANKS_PER_CORE = 4  # more only wait for each other's turn
_SHUTDOWN_S = 5  # from SIGTERM to SIGKILL
_LOOPBACK = "127.0.0.1"


def launch(
    command_args: Sequence[str],
    *,
    nproc: int,
    nnodes: int = 1,
    rdzv_endpoint: str | None = None,
    max_restarts: int = 0,
    environment: Mapping[str, str] | None = None,
    device: str = "cpu",
    output: TextIO | None = None,
    verbose: bool = False,
) -> None:
    """Run Python on *command_args* as *nproc* ranks here; returns when all are done.

    With *nnodes* > 1 the same is called on every machine, and they meet at
    *rdzv_endpoint*, HOST:PORT of one of them. Workers get torchrun's variables and
    *environment*; rank 0's stdout goes to *output* (stderr, if None) line by line.
    Raises InvalidQuestion before anything starts, RunFailed when a worker died, and
    KeyboardInterrupt; no worker is left when it returns or raises.
    """
    require_startable(nproc, device=device)
    endpoint = _endpoint(nnodes, rdzv_endpoint)
    folder = Path(mkdtemp(prefix="meshwright-run-"))
    relay = Relay(output or sys.stderr)
    shown = _variables(nproc, nnodes, environment or {}, verbose)
    try:
        with elastic_logs_silenced(verbose), _signals_restored(), relay:
            logs = logs_of(folder, relay, shown, max_restarts)
            _elastic(
                ["-P", *command_args],
                min_nodes=nnodes,
                max_nodes=nnodes,
                nproc_per_node=nproc,
                rdzv_endpoint=endpoint,
                run_id=uuid.uuid4().hex if nnodes == 1 else "meshwright",
                local_addr=_LOOPBACK if nnodes == 1 else None,
                max_restarts=max_restarts,
                logs_specs=logs,
            )
    except RunFailed:
        raise  # the logs are named in it
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    shutil.rmtree(folder, ignore_errors=True)


def require_startable(nproc: int, *, device: str) -> None:
    """Raise InvalidQuestion for more ranks than this machine can run."""
    if device == "cuda":
        import torch

        most, what = torch.cuda.device_count(), "one a CUDA device"
    else:
        cores = len(os.sched_getaffinity(0))
        most = MOST_RANKS_PER_CORE * cores
        what = f"{MOST_RANKS_PER_CORE} a core of {cores}"
    if not 1 <= nproc <= most:
        raise InvalidQuestion(
            f"{nproc} ranks cannot start here; 1 to {most} can ({what}): choose a "
            "layout for fewer, or spread it with --nnodes and --rdzv-endpoint"
        )


def _endpoint(nnodes: int, given: str | None) -> str:
    if nnodes < 1:
        raise InvalidQuestion(f"--nnodes {nnodes} must be 1 or more")
    if nnodes == 1 and given is None:
        return f"{_LOOPBACK}:0"  # any free port
    host, _, port = (given or "").rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 2**16:
        raise Contradiction(
            f"--nnodes {nnodes} needs --rdzv-endpoint HOST:PORT of one of the machines, "
            f"as in node0:29400; given {given or 'none'}"
        )
    return f"{host}:{port}"


def _variables(
    nproc: int, nnodes: int, given: Mapping[str, str], verbose: bool
) -> dict[str, str]:
    """What every worker finds in its environment beside torchrun's variables."""
    packages = str(Path(__file__).resolve().parents[1])
    path = given.get("PYTHONPATH", os.environ.get("PYTHONPATH", ""))
    threads = max(1, len(os.sched_getaffinity(0)) // nproc)
    variables = {"OMP_NUM_THREADS": str(threads), "PYTHONUNBUFFERED": "1"}
    if nnodes == 1 and sys.platform == "linux":
        variables["GLOO_SOCKET_IFNAME"] = "lo"
    if not verbose:
        variables["TORCH_CPP_LOG_LEVEL"] = "ERROR"
    kept = {name: os.environ[name] for name in variables if name in os.environ}
    joined = os.pathsep.join(part for part in (packages, path) if part)
    return {**variables, **kept, **given, "PYTHONPATH": joined}


def _elastic(arguments: list[str], *, logs_specs: Any, **settings: Any) -> None:
    """Run the agent; its errors become ours."""
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.elastic.rendezvous.api import RendezvousError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    if "shutdown_timeout" in LaunchConfig.__dataclass_fields__:  # from torch 2.12
        settings["shutdown_timeout"] = _SHUTDOWN_S
    config = LaunchConfig(
        rdzv_backend="c10d", monitor_interval=0.1, logs_specs=logs_specs, **settings
    )
    end: BaseException
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)  # it leaves log files open
        try:
            elastic_launch(config, sys.executable)(*arguments)
            return
        except ChildFailedError as error:
            end = RunFailed(told(error.failures, logs_specs.folders))
        except RendezvousError as error:
            end = RunFailed(
                f"the {settings['max_nodes']} machines did not meet at "
                f"{settings['rdzv_endpoint']}: {error}"
            )
        except SignalException as error:
            interrupted = error.sigval == signal.SIGINT
            end = (
                KeyboardInterrupt()
                if interrupted
                else RunFailed(f"the run was ended by {error.sigval.name}")
            )
    raise end  # here, so that the agent's frames and files are gone


@contextmanager
def _signals_restored() -> Iterator[None]:
    """The agent replaces signal handlers and leaves its own behind."""
    watched = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)
    before = {number: signal.getsignal(number) for number in watched}
    try:
        yield
    finally:
        for number, handler in before.items():
            if signal.getsignal(number) is not handler:
                signal.signal(number, handler)
