"""What a worker process leaves for the launcher, in a folder of its own.

`words` is overwritten all the time, so that a killed worker is known by the action it
was in; `failure` is the error that a worker gave up with.
"""

from __future__ import annotations

import mmap
import os
import time
from functools import lru_cache
from pathlib import Path

from profiles.errors import MeshwrightError

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
