"""What a worker process leaves behind, and the report on a failed run made from it.

A worker keeps the action it is in in the file `words`, which survives a SIGKILL, and
writes the error that it ended with to `failure`. When one worker dies, the others lose
their peer and are then ended by the agent. The report names the likely cause first: a
worker killed from outside, then one that failed by itself, then one that lost its
peers, then one that the agent ended.
"""

from __future__ import annotations

import mmap
import os
import re
import time
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from signal import SIGKILL, SIGTERM, Signals

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
            operation = operation_in(error)
            if operation:
                self.say(f"{words_in(self._folder)}, {operation}")
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


def operation_in(error: BaseException) -> str:
    """The operation of torch.distributed that raised *error*, or caused it; empty where
    none did. What waits for one that is on its way says in a note which it is."""
    found = ""
    cause: BaseException | None = error
    while cause is not None:
        notes = getattr(cause, "__notes__", ())
        calls = [
            frame.f_code.co_name
            for frame, _ in traceback.walk_tb(cause.__traceback__)
            if _DISTRIBUTED in frame.f_code.co_filename
        ]
        named = [name for name in calls if _OPERATION.match(name)]
        found = (*notes, *named[-1:], found)[0]
        cause = cause.__cause__
    return found


_DISTRIBUTED = os.path.join("torch", "distributed")
_OPERATION = re.compile(
    r"(all_|reduce|broadcast|barrier|i?send|i?recv|scatter|gather|batch_isend)"
)
STDERR = "stderr.log"
_LONGEST = 300
_LOG_BYTES = 16384  # of the end of a log file
_TIMED_OUT = re.compile(r"timed? ?out", re.IGNORECASE)
_LOST_PEER = re.compile(
    rf"connection (closed|reset|refused)|broken pipe|did not meet|{_TIMED_OUT.pattern}",
    re.IGNORECASE,
)
_TELLING = re.compile(r"^(\w+\.)*\w*(Error|Exception)\b|what\(\):")
_SOURCE_LINE = re.compile(r"\[\S+\.(cc|cpp|h|hpp):\d+\] ")


def lost_peer(error: object) -> bool:
    """Whether what a rank ended with says that another was gone before."""
    return _LOST_PEER.search(str(error)) is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class FailedWorker:
    """A worker that ended badly."""

    rank: int
    exit_code: int  # negative: the signal that ended it
    doing: str
    error: str
    time_ns: int
    log: Path
    hung: bool = False  # others waited for it in vain, and it did not end when asked to

    @property
    def remove(self) -> int:
        """How far from the cause: 0 is killed from outside, 3 is ended by the agent."""
        if self.exit_code < 0:
            return 3 if self.hung or self.exit_code == -SIGTERM else 0
        return 2 if lost_peer(self.error) else 1

    @property
    def place(self) -> str:
        """Where it was when the others failed."""
        stuck = ", and did not end when asked to" if self.hung else ""
        return f"rank {self.rank} was in {self.doing}{stuck}"

    def __str__(self) -> str:
        if self.hung:
            return self.place
        error = f": {self.error}" if self.error else ""
        return f"rank {self.rank} {ending(self.exit_code)} in {self.doing}{error}"


def failed_workers(
    ends: Mapping[int, tuple[int, int]], folders: Mapping[int, Path]
) -> list[FailedWorker]:
    """The workers that ended badly, the likely cause first.

    *ends* has the exit code and the time (ns) by rank, *folders* what they left.
    """
    failed = [_failed_worker(rank, *end, folders[rank]) for rank, end in ends.items()]
    if any(_TIMED_OUT.search(one.error) for one in failed):
        failed = [replace(one, hung=one.exit_code == -SIGKILL) for one in failed]
    return sorted(failed, key=lambda one: (one.remove, one.time_ns))


def failure_report(failed: Sequence[FailedWorker]) -> str:
    """One line on the workers that failed, which are in the order of their likely
    causes."""
    first, others = failed[0], failed[1:]
    line = str(first)
    if first.remove >= 2 and others:  # it missed the others: where were they?
        line += "".join(f"; {one.place}" for one in others[:3])
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


def _failed_worker(
    rank: int, exit_code: int, time_ns: int, folder: Path
) -> FailedWorker:
    log = folder / STDERR
    left = failure_in(folder)
    when, error = left or (time_ns, _last_line(log))
    return FailedWorker(
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
