"""`launch`: starts a run's worker processes and reports how they ended.

One elastic agent a machine starts its workers, restarts all of them when one dies, and
ends them when the command ends. Each worker writes to its own log files; what rank 0
prints is shown as it comes, and what the worker that died first had to say is in the
error.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from pathlib import Path
from tempfile import mkdtemp
from threading import Event, Thread
from typing import Any, Final, TextIO

from profiles.errors import Contradiction, RunFailed
from profiles.system import Endpoint, interface, meeting_point, route_to
from runtime.launch.agent import Logs, NotMet, Prepare, Relay, silenced, watch
from runtime.launch.fork_server import SERVE, client, cold, listening

ANSWER_S: Final = 20.0  # that a launcher on a busy machine may take
_CONNECT_S: Final = 5.0
FORK_SERVER: Final = "runtime.launch.fork_server"
END_S: Final = 5.0  # that the server has to end its workers
REJOIN_S: Final = 600.0  # that a machine tries to meet the others again
AGAIN_S: Final = 1.0
LONG_S: Final = 60.0  # no attempt to meet takes so long


def require_launcher(endpoint: Endpoint, within_s: float = ANSWER_S) -> None:
    """Raise RunFailed where somebody at *endpoint* takes connections and does not
    answer as a launcher's store does. If nobody is there yet, one is still to come.

    A foreign program that has the port takes the connection, and torch's client waits
    for an answer that never comes, or asks again for many minutes. So it is asked once
    before, on a thread that is left behind if it hangs.
    """
    if not _taken(endpoint):
        return
    answered = Event()
    arguments = (endpoint, within_s, answered)
    Thread(target=_ask, args=arguments, daemon=True).start()
    if not answered.wait(within_s):
        raise RunFailed(
            f"another program uses {endpoint}: it takes connections and does not "
            "answer as a launcher would; end it there, or give every machine another "
            "port"
        )


def _taken(endpoint: Endpoint) -> bool:
    place = endpoint.host, endpoint.port
    with suppress(OSError), socket.create_connection(place, timeout=_CONNECT_S):
        return True
    return False


def _ask(endpoint: Endpoint, within_s: float, answered: Event) -> None:
    from torch._C._distributed_c10d import TCPStore

    with suppress(Exception):
        TCPStore(
            endpoint.host,
            endpoint.port,
            is_master=False,
            wait_for_workers=False,
            timeout=timedelta(seconds=within_s),
        )
        answered.set()


MOST_RANKS_PER_CORE = 4  # more only wait for each other's turn
_LOOPBACK = "127.0.0.1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """`python -m module arguments…`; what may start again is forked from a process that
    has imported *imports*."""

    arguments: Sequence[str] = ()
    module: str = "runtime.launch.worker"
    imports: str = "runtime.launch.worker"
    grace_s: int = 5  # from asking a worker to end to killing it


@dataclass(frozen=True, slots=True, kw_only=True)
class Machines:
    """How many a run has, *least* to *most*, and where they meet: HOST:PORT of one of
    them. Where the numbers differ, they may come and go."""

    least: int = 1
    most: int = 1
    endpoint: str | None = None

    @property
    def elastic(self) -> bool:
        return self.least < self.most


def launch(
    program: Program,
    *,
    nproc: int,
    machines: Machines | None = None,
    max_restarts: int = 0,
    device: str = "cpu",
    output: TextIO | None = None,
    prepare: Prepare | None = None,
) -> None:
    """Run *program* as *nproc* ranks; returns when all are done.

    With several *machines* the same is called on each. Rank 0's stdout goes to *output*
    (stderr, if None) line by line; *prepare* is called before workers start, each time.
    Raises Contradiction before anything starts, RunFailed when a worker died, and
    KeyboardInterrupt; no worker is left when it returns or raises.
    """
    require_startable(nproc, device=device)
    machines = machines or Machines()
    endpoint = meeting_point(machines.most, machines.endpoint)
    settings = _meeting(endpoint, machines)
    variables = _variables(nproc, endpoint)
    if endpoint is not None:
        require_launcher(endpoint)
    folder = Path(mkdtemp(prefix="meshwright-run-"))
    try:
        with Relay(output or sys.stderr) as relay:
            logs = Logs(
                folder,
                relay=relay,
                variables=variables,
                max_restarts=max_restarts,
                prepare=prepare,
            )
            again = max_restarts > 0
            with silenced(), _startable(program, folder, variables, again) as command:
                _met_until_done(
                    partial(
                        watch,
                        command,
                        logs,
                        nproc_per_node=nproc,
                        max_restarts=max_restarts,
                        shutdown_timeout=program.grace_s,
                        **settings,
                    ),
                    partial(_is_there, endpoint),
                    REJOIN_S if machines.elastic else 0.0,
                )
    except RunFailed:
        raise  # its message names the logs
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def _startable(
    program: Program, folder: Path, variables: Mapping[str, str], again: bool
) -> Iterator[list[str]]:
    """What follows the interpreter to start *program*; where that may be done *again*,
    by a server that has imported its packages."""
    module, arguments = program.module, list(program.arguments)
    if not (again and hasattr(os, "pidfd_open")):
        yield cold(module, arguments)
        return
    with listening(folder) as door:
        server = subprocess.Popen(
            [
                *(sys.executable, *cold(FORK_SERVER, [SERVE])),
                *(str(door.fileno()), str(os.getpid()), program.imports),
            ],
            env={**os.environ, **variables},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,  # workers have files of their own
            stderr=subprocess.DEVNULL,
            pass_fds=[door.fileno()],
        )
    try:
        yield client(folder, module, arguments)
    finally:
        server.terminate()
        with suppress(subprocess.TimeoutExpired):
            server.wait(END_S)
        server.kill()
        server.wait()


def require_startable(nproc: int, *, device: str = "cpu") -> None:
    """Raise Contradiction for more ranks than this machine can run."""
    if device == "cuda":
        import torch

        most, what = torch.cuda.device_count(), "one a CUDA device"
    else:
        cores = len(os.sched_getaffinity(0))
        most = MOST_RANKS_PER_CORE * cores
        what = f"{MOST_RANKS_PER_CORE} for each of {cores} cores"
    if not 1 <= nproc <= most:
        raise Contradiction(
            f"{nproc} ranks cannot start here: this machine takes 1 to {most} "
            f"({what}); use a layout for fewer, or more machines (--nnodes N "
            "--rdzv-endpoint HOST:PORT)"
        )


def _met_until_done(
    met: Callable[[], None], there: Callable[[], bool], patience_s: float
) -> None:
    """*met*, again where it loses the others, until it has not met them for so long;
    not before somebody is *there* to be met."""
    until = time.monotonic() + patience_s
    while True:
        while time.monotonic() < until and not there():
            time.sleep(AGAIN_S)
        began = time.monotonic()
        try:
            met()
            return
        except NotMet:
            now = time.monotonic()
            if now - began > LONG_S:  # they had met
                until = now + patience_s
            if now >= until:
                raise
            time.sleep(AGAIN_S)


def _is_there(endpoint: Endpoint | None) -> bool:
    """Whether this machine has *endpoint*, or somebody answers there."""
    route = None if endpoint is None else route_to(endpoint)
    return endpoint is None or route is None or route.here or _taken(endpoint)


def _meeting(endpoint: Endpoint | None, machines: Machines) -> dict[str, Any]:
    """Where the machines of a run meet, as `LaunchConfig` has it."""
    settings: dict[str, Any] = {
        "min_nodes": machines.least,
        "max_nodes": machines.most,
        "rdzv_backend": "c10d",
        "rdzv_configs": {},
    }
    if machines.elastic:
        from runtime.launch import rendezvous

        rendezvous.register()
        settings["rdzv_backend"] = rendezvous.BACKEND
        settings["rdzv_configs"] = dict(rendezvous.SETTINGS)
    if endpoint is None:
        settings |= {"rdzv_endpoint": f"{_LOOPBACK}:0", "local_addr": _LOOPBACK}
        return settings | {"run_id": uuid.uuid4().hex[:8]}
    settings |= {"rdzv_endpoint": str(endpoint), "run_id": "meshwright"}
    route = route_to(endpoint)
    if route is not None:
        settings["local_addr"] = route.address
        if route.here and _free(route.address, endpoint.port):
            settings["rdzv_configs"]["is_host"] = True  # torch asks for names only
    return settings


def _free(address: str, port: int) -> bool:
    """Whether nobody on this machine, such as another launcher, has the port. Loopback
    torch knows by itself."""
    if address == _LOOPBACK:
        return False
    with suppress(OSError), socket.create_server((address, port)):
        return True
    return False


def _variables(nproc: int, endpoint: Endpoint | None) -> dict[str, str]:
    """What every worker finds in its environment beside torchrun's variables."""
    threads = max(1, len(os.sched_getaffinity(0)) // nproc)
    ours = {
        "OMP_NUM_THREADS": str(threads),
        "PYTHONUNBUFFERED": "1",
        "TORCH_CPP_LOG_LEVEL": "ERROR",
    }
    spoken = interface(endpoint)
    if spoken is not None:
        ours["GLOO_SOCKET_IFNAME"] = spoken
    kept = {name: os.environ[name] for name in ours if name in os.environ}
    return {**ours, **kept, "PYTHONPATH": packages()}


def packages() -> str:
    """PYTHONPATH of a process that is to find our packages, whatever else is there."""
    paths = (str(Path(__file__).resolve().parents[2]), os.environ.get("PYTHONPATH", ""))
    return os.pathsep.join(filter(None, paths))
