"""torch's elastic agent: it starts the workers of this machine, watches and ends them.

The agent asks a `LogsSpecs` for the log files of each attempt, and takes the variables
of its workers with them; this is also how workers learn of their folders.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Event, Lock, Thread
from typing import Any, Self, TextIO

from torch.distributed import DistError
from torch.distributed.elastic.multiprocessing.api import (
    DefaultLogsSpecs,
    LogsDest,
    SignalException,
    Std,
)
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.elastic.rendezvous.api import RendezvousError
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

from profiles.errors import RunFailed
from runtime.launch.failures import (
    FOLDER,
    LAUNCHER,
    FailedWorker,
    failed_workers,
    failure_report,
    words_in,
)

_PERIOD_S = 0.05


class Relay:
    """Follows growing files on a thread, and writes what comes to *output*; nothing
    more once nobody reads it (`| head`), while the run goes on."""

    def __init__(self, output: TextIO) -> None:
        self._output, self._over, self._turn = output, Event(), Lock()
        self._read: dict[Path, int] = {}
        self._heard = True
        self._thread = Thread(target=self._follow, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *ended: object) -> None:
        self._over.set()
        self._thread.join()
        self._pump(last=True)

    def turn_to(self, files: list[Path], announcement: str = "") -> None:
        """Follow *files*, which a new attempt writes, from their beginning."""
        self._pump(last=True)
        if announcement:
            self._show(f"{announcement}\n")
        with self._turn:
            self._read = dict.fromkeys(files, 0)

    def _follow(self) -> None:
        while not self._over.wait(_PERIOD_S):
            self._pump()

    def _pump(self, *, last: bool = False) -> None:
        with self._turn:
            for file, read in self._read.items():
                self._read[file] += self._shown(file, read, last)

    def _shown(self, file: Path, read: int, last: bool) -> int:
        """Write the whole lines after the first *read* bytes; returns their bytes."""
        if not file.exists() or file.stat().st_size <= read:
            return 0
        with file.open("rb") as stream:
            stream.seek(read)
            fresh = stream.read()
        lines = fresh + b"\n" * (not fresh.endswith(b"\n")) if last else fresh
        whole = lines[: lines.rfind(b"\n") + 1]
        self._show(whole.decode(errors="replace"))
        return len(whole)

    def _show(self, text: str) -> None:
        if not self._heard:
            return
        try:
            self._output.write(text)
            self._output.flush()
        except OSError:
            self._heard = False


_SILENT = logging.CRITICAL + 1
_SIGNALS = "TORCHELASTIC_SIGNALS_TO_HANDLE"
_OWN_STORE = "TORCH_DISABLE_SHARE_RDZV_TCP_STORE"  # of the ranks of each attempt


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """Workers that are about to start: all ranks of all *machines*."""

    ranks: int
    machines: int
    has_rank_0: bool  # on this machine

    @classmethod
    def of(cls, envs: Mapping[int, Mapping[str, str]]) -> Attempt:
        """As the workers' variables have it."""
        one = next(iter(envs.values()))
        return cls(
            ranks=int(one["WORLD_SIZE"]),
            machines=int(one["GROUP_WORLD_SIZE"]),
            has_rank_0=any(some["RANK"] == "0" for some in envs.values()),
        )


Prepare = Callable[[Attempt], str]  # before workers start; what to say of it, or ""


class Logs(DefaultLogsSpecs):
    """A folder for each rank and attempt; `folders` are those of the last attempt."""

    def __init__(
        self,
        root: Path,
        *,
        relay: Relay,
        variables: Mapping[str, str],
        max_restarts: int,
        prepare: Prepare | None = None,
    ) -> None:
        super().__init__(log_dir=str(root), redirects=Std.ALL)
        self.folders: dict[int, Path] = {}
        self._relay, self._variables = relay, variables
        self._max_restarts, self._prepare = max_restarts, prepare
        self._restarts = 0

    def reify(self, envs: dict[int, dict[str, str]]) -> LogsDest:
        """The agent's question at every attempt; *envs* are the workers' variables."""
        restarts = int(envs[0]["TORCHELASTIC_RESTART_COUNT"])
        why = self._restarting(restarts)  # before the folders may be made anew
        places = super().reify(envs)
        self.folders = {}
        for local_rank, variables in envs.items():
            folder = Path(places.stdouts[local_rank]).parent
            self.folders[int(variables["RANK"])] = folder
            variables.update(self._variables)
            variables.update({FOLDER: str(folder), LAUNCHER: str(os.getpid())})
        followed = [self.folders[0] / "stdout.log"] if 0 in self.folders else []
        self._relay.turn_to([], why)
        prepared = self._prepare(Attempt.of(envs)) if self._prepare else ""
        self._relay.turn_to(followed, prepared)
        return places

    def tell(self, failed: Sequence[FailedWorker]) -> None:
        """A line on each of this machine's ranks, where there are several."""
        lines = {one.rank: one.place if one.remove == 3 else str(one) for one in failed}
        for rank, folder in sorted(self.folders.items()):
            alive = f"rank {rank} was in {words_in(folder)}"
            if len(self.folders) > 1:
                self._relay.turn_to([], lines.get(rank, alive))

    def _restarting(self, restarts: int) -> str:
        if not self.folders:
            return ""
        some = list(self.folders.items())[:4]
        words = "; ".join(f"rank {rank} in {words_in(at)}" for rank, at in some)
        if restarts == self._restarts:
            return f"machines left or joined ({words}); starting all again"
        self._restarts = restarts
        return (
            f"a worker died ({words}); starting all again, {restarts} of "
            f"{self._max_restarts}"
        )


class NotMet(RunFailed):
    """Machines that do not find each other at the endpoint, or lose it."""


def watch(arguments: Sequence[str], logs: Logs, **settings: Any) -> None:
    """Run Python on *arguments* in every worker; *settings* are `LaunchConfig`'s.

    Raises RunFailed for a worker that died, KeyboardInterrupt, and SystemExit when this
    process is told to end; no worker is left then.
    """
    if "shutdown_timeout" not in LaunchConfig.__dataclass_fields__:  # from torch 2.12
        settings.pop("shutdown_timeout", None)
    config = LaunchConfig(monitor_interval=0.1, logs_specs=logs, **settings)
    end: BaseException
    with warnings.catch_warnings(), _variables_restored(), _signals_restored():
        if config.max_nodes > 1:
            os.environ[_OWN_STORE] = "1"
        warnings.simplefilter("ignore", ResourceWarning)  # it leaves log files open
        try:
            elastic_launch(config, sys.executable)(*arguments)
            return
        except ChildFailedError as error:
            now = time.time_ns()
            ends = {who: (one.exitcode, now) for who, one in error.failures.items()}
            failed = failed_workers(ends, logs.folders)
            logs.tell(failed)
            end = RunFailed(failure_report(failed))
        except RunFailed as error:  # an attempt cannot be prepared
            end = RunFailed(*error.args)
        except (RendezvousError, DistError) as error:
            end = NotMet(
                f"the machines of the run did not meet at {config.rdzv_endpoint}, or "
                f"lost it: {error}"
            )
        except SignalException as error:
            interrupted = error.sigval == signal.SIGINT
            end = KeyboardInterrupt() if interrupted else SystemExit(128 + error.sigval)
    raise end  # here, so that the agent's frames and its open files are gone


@contextmanager
def silenced() -> Iterator[None]:
    """The agent logs what our own errors say better."""
    names = [
        name
        for name in logging.root.manager.loggerDict
        if name.startswith("torch.distributed")
    ]
    loggers = [logging.getLogger(name) for name in names]
    before = [one.level for one in loggers]
    try:
        for one in loggers:
            one.setLevel(_SILENT)
        yield
    finally:
        for one, level in zip(loggers, before, strict=True):
            one.setLevel(level)


@contextmanager
def _variables_restored() -> Iterator[None]:
    """Those that the agent reads, and those that it sets."""
    before = os.environ.get(_OWN_STORE)
    try:
        yield
    finally:
        os.environ.pop(_SIGNALS, None)
        if before is None:
            os.environ.pop(_OWN_STORE, None)


@contextmanager
def _signals_restored() -> Iterator[None]:
    """The agent replaces signal handlers and leaves its own behind."""
    main = threading.current_thread() is threading.main_thread()
    watched = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)
    before = {number: signal.getsignal(number) for number in watched if main}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
