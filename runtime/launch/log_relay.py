"""`Relay`: what rank 0 prints, shown on the terminal as it comes."""

from __future__ import annotations

from pathlib import Path
from threading import Event, Lock, Thread
from types import TracebackType
from typing import Self, TextIO

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

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
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
