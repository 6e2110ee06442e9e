"""Who died first, of what, and doing what: the story of a failed run in one line.

When one worker dies the others lose it, and are then ended by the agent. The first is
told: one killed from outside before one that failed by itself, before one that lost its
peers, before one that the agent ended.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from signal import SIGKILL, SIGTERM, Signals
from typing import Any

from runtime.processes import FAILURE, WORDS

_LONGEST = 300
_LOG_BYTES = 16384  # of the end of a log file
_LOST_PEER = re.compile(
    r"connection (closed|reset|refused)|broken pipe|timed? ?out|remote process|"
    r"did not meet",
    re.IGNORECASE,
)
_TELLING = re.compile(r"^(\w+\.)*\w*(Error|Exception|Interrupt)\b|what\(\):")


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
    def order(self) -> tuple[int, int]:
        """The cause sorts before what followed from it."""
        if self.exit_code == -SIGTERM:
            return 3, self.time_ns
        if self.exit_code < 0:
            return 0, self.time_ns
        return 2 if _LOST_PEER.search(self.error) else 1, self.time_ns

    def __str__(self) -> str:
        doing = f" in {self.doing}" if self.doing else ""
        error = f": {self.error}" if self.error else ""
        return f"rank {self.rank} {ending(self.exit_code)}{doing}{error}"


def told(failures: Mapping[int, Any], folders: Mapping[int, Path]) -> str:
    """One line on the elastic agent's *failures*, by rank, from the ranks' *folders*."""
    casualties = sorted(
        (
            _casualty(rank, failure.exitcode, failure.timestamp, folders[rank])
            for rank, failure in failures.items()
        ),
        key=lambda one: one.order,
    )
    first, others = casualties[0], casualties[1:]
    line = str(first)
    if first.order[0] >= 2 and others:  # it says what it missed: where were the others?
        line += "; " + "; ".join(f"rank {one.rank} in {one.doing}" for one in others[:3])
    return f"{line}; its output: {first.log}"


def words_in(folder: Path) -> str:
    """The last words of the worker that had *folder*."""
    try:
        raw = (folder / WORDS).read_bytes()
    except OSError:
        return "before its first words"
    return _clean(raw.rstrip(b"\0").decode(errors="replace"))


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


def _casualty(rank: int, exit_code: int, time_s: int, folder: Path) -> Casualty:
    log = folder / "stderr.log"
    time_ns, error = _failure(folder) or (time_s * 10**9, _last_line(log))
    return Casualty(
        rank=rank,
        exit_code=exit_code,
        doing=words_in(folder),
        error=error,
        time_ns=time_ns,
        log=log,
    )


def _failure(folder: Path) -> tuple[int, str] | None:
    """The error that the worker itself left."""
    try:
        written = (folder / FAILURE).read_text(encoding="utf-8", errors="replace")
        time_ns, kind, text = written.split("\n", 2)
        return int(time_ns), _clean(f"{kind}: {text}" if kind else text)
    except (OSError, ValueError):
        return None


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
    return _clean((telling or lines or [""])[-1])


def _clean(text: str) -> str:
    line = " ".join(text.split())
    shown = "".join(letter if letter.isprintable() else "?" for letter in line)
    return shown if len(shown) <= _LONGEST else f"{shown[:_LONGEST]}…"
