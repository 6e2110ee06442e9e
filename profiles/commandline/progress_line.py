"""`progress`: one line on a terminal's stderr that says how far long work is.

Shown after two seconds and only on a terminal; it holds no escape codes and does not
stay. `waiting` is about a whole command, of which nothing is known but the time;
`progress` about work of which the share that is done is known, which it estimates the
rest from.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from shutil import get_terminal_size
from threading import Event, Thread, current_thread
from time import monotonic
from typing import Final, TypeVar

PATIENCE_S: Final = 2.0  # shorter work shows nothing
EVERY_S: Final = 0.2
LEAST_SHARE: Final = 0.02  # of the work, before the rest is estimated from it
SLOWLY_S: Final = 1.0  # between two words of a command that says nothing of itself
Item = TypeVar("Item")


_shown: list[Line] = []  # on the terminal, where another line would go on it


def hush() -> None:
    """Clear the line that is shown: another message comes."""
    for line in _shown:
        line.clear()


@dataclass(kw_only=True)
class Line:
    """The last line of a terminal, written over and over."""

    began_s: float = field(default_factory=monotonic)
    shown_s: float = 0.0
    length: int = 0

    @property
    def seconds(self) -> float:
        return monotonic() - self.began_s

    def show(self, words: str) -> None:
        """Write *words*, at most five times a second, if there was patience enough."""
        now_s = self.seconds
        if now_s < PATIENCE_S or now_s < self.shown_s + EVERY_S:
            return
        self.shown_s = now_s
        _shown[:] = [self]
        room = max(get_terminal_size().columns - 1, 1)
        short = words if len(words) <= room else words[: room - 1] + "…"
        self._write(short.ljust(min(self.length, room)))
        self.length = len(short)

    def clear(self) -> None:
        if self.length:
            self._write(" " * self.length + "\r")
            self.length = 0

    def _write(self, words: str) -> None:
        with suppress(OSError, ValueError):  # who closed stderr wants no progress
            sys.stderr.write("\r" + words)
            sys.stderr.flush()


class Waiting:
    """Says every second how long a command has worked, until the answer begins."""

    def __init__(self, called: str) -> None:
        self.called, self.line, self.note = called, Line(), ""
        self.paused, self._over = 0, Event()
        self._thread = Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._over.wait(SLOWLY_S):
            if not self.paused:
                about = f"{self.note}," if self.note else f"{self.called}:"
                self.line.show(f"{about} {self.line.seconds:.0f} s so far")

    def tell(self, note: str) -> None:
        """Say *note* now, and with the time until another."""
        self.note = note
        if note and not self.paused:
            self.line.show(note)

    def end(self) -> None:
        self._over.set()
        if self._thread is not current_thread():
            self._thread.join()
        self.line.clear()


_waiting: list[Waiting] = []  # of the command that runs, on a terminal


def on_terminal() -> bool:
    """Whether somebody watches stderr."""
    return sys.stderr is not None and sys.stderr.isatty()


@contextmanager
def waiting(called: str) -> Iterator[None]:
    """Show how long the command *called* so has worked; `quiet` ends it."""
    if not on_terminal() or _waiting:
        yield
        return
    _waiting.append(Waiting(called))
    try:
        yield
    finally:
        quiet()


def quiet() -> None:
    """Nothing more is shown of the command that runs: its answer begins, or processes
    that speak for themselves."""
    while _waiting:
        _waiting.pop().end()


@contextmanager
def own_line() -> Iterator[Line | None]:
    """A line for work that tells of itself; None where nobody watches."""
    if not on_terminal():
        yield None
        return
    line = Line()
    for one in _waiting:
        one.paused += 1
        one.line.clear()
        line.began_s = one.line.began_s  # it has been patient since then
    try:
        yield line
    finally:
        line.clear()
        for one in _waiting:
            one.paused -= 1


@contextmanager
def progress(what: str) -> Iterator[Callable[[float, float], None]]:
    """What takes ``(done, of)`` as work goes on, and shows the share and what is left
    of the time."""
    command = _waiting[-1] if _waiting else None
    begun_s = monotonic()
    with nullcontext() if command else own_line() as line:

        def advance(done: float, of: float) -> None:
            words = progress_words(what, done, of, monotonic() - begun_s)
            if command is not None:
                command.tell(words)
            elif line is not None:
                line.show(words)

        yield advance
        if command is not None:
            command.tell("")


def counted(items: Iterable[Item], of: int, what: str) -> Iterator[Item]:
    """The *items*, of which there are *of*, with progress as they are taken."""
    with progress(what) as advance:
        for done, item in enumerate(items, 1):
            yield item
            advance(done, of)


def progress_words(what: str, done: float, of: float, seconds: float) -> str:
    """The share that is done, and what the rest takes at the same pace.

    >>> progress_words("pricing", 30, 120, 2.0)
    'pricing: 25 %, about 6 s left'
    >>> progress_words("pricing", 1, 120, 2.0)
    'pricing: 1 %'
    """
    share = min(done / of, 1.0) if of > 0 else 0.0
    left = ""
    if share >= LEAST_SHARE:
        left = f", about {left_words(seconds / share - seconds)} left"
    return f"{what}: {share:.0%}{left}".replace("%", " %")


def left_words(seconds: float) -> str:
    """An estimate, no finer than it is.

    >>> left_words(7.4), left_words(100), left_words(9000)
    ('7 s', '2 min', '2.5 h')
    """
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
