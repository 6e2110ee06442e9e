"""Where workers write: a folder for each rank and attempt, and a relay to the terminal.

The elastic agent asks for the log files of each attempt, and takes with them the
variables of its workers; this is also how they learn of their folder.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from threading import Event, Thread
from types import TracebackType
from typing import Any, Self, TextIO

from runtime.casualties import words_in
from runtime.processes import SAYS

_PERIOD_S = 0.05
_SILENT = logging.CRITICAL + 1


class Relay:
    """Follows rank 0's stdout on a thread, and writes what comes to *output*."""

    def __init__(self, output: TextIO) -> None:
        self._output, self._over = output, Event()
        self._file: Path | None = None
        self._read = 0
        self._thread = Thread(target=self._follow, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._over.set()
        self._thread.join()

    def turn_to(self, file: Path | None, announcement: str = "") -> None:
        """Follow *file*, which a new attempt writes, from its beginning."""
        self._pump(self._file)
        if announcement:
            self._output.write(f"{announcement}\n")
        self._file, self._read = file, 0

    def _follow(self) -> None:
        while not self._over.wait(_PERIOD_S):
            self._pump(self._file)
        self._pump(self._file)

    def _pump(self, file: Path | None) -> None:
        if file is None or not file.exists():
            return
        with file.open("rb") as stream:
            stream.seek(self._read)
            fresh = stream.read()
        if fresh:
            self._read += len(fresh)
            self._output.write(fresh.decode(errors="replace"))
            self._output.flush()


def logs_of(
    root: Path, relay: Relay, variables: Mapping[str, str], max_restarts: int
) -> Any:
    """torch's `LogsSpecs` for one run; `folders` has each rank's, of the last attempt.

    A function, so that importing this room does not load the elastic agent.
    """
    from torch.distributed.elastic.multiprocessing.api import (
        DefaultLogsSpecs,
        LogsDest,
        Std,
    )

    class Logs(DefaultLogsSpecs):
        folders: dict[int, Path]

        def reify(self, envs: dict[int, dict[str, str]]) -> LogsDest:
            places = super().reify(envs)
            before, self.folders = getattr(self, "folders", {}), {}
            shown: Path | None = None
            for local_rank, environment in envs.items():
                folder = Path(places.stdouts[local_rank]).parent
                rank = int(environment["RANK"])
                self.folders[rank] = folder
                environment.update(variables)
                environment[SAYS] = str(folder)
                if rank == 0:
                    shown = Path(places.stdouts[local_rank])
            attempt = int(next(iter(envs.values()))["TORCHELASTIC_RESTART_COUNT"])
            relay.turn_to(shown, _restarting(before, attempt, max_restarts))
            return places

    return Logs(log_dir=str(root), redirects=Std.ALL)


def _restarting(before: Mapping[int, Path], attempt: int, most: int) -> str:
    if not before:
        return ""
    some = list(before.items())[:4]
    words = "; ".join(f"rank {rank} in {words_in(at)}" for rank, at in some)
    return f"a worker died ({words}); starting all again, {attempt} of {most}"


@contextmanager
def elastic_logs_silenced(verbose: bool) -> Iterator[None]:
    """The agent logs what our own errors say better."""
    import torch.distributed.launcher.api  # so that its loggers are there

    names = [
        name
        for name in logging.root.manager.loggerDict
        if name.startswith("torch.distributed")
    ]
    loggers = [logging.getLogger(name) for name in names]
    before = [one.level for one in loggers]
    try:
        if not verbose:
            for one in loggers:
                one.setLevel(_SILENT)
        yield
    finally:
        for one, level in zip(loggers, before, strict=True):
            one.setLevel(level)
