"""`Journal`: what is written of a run while it goes on, one entry a step.

A run that is resumed goes on in the same files: of JSON lines those of later steps than
the checkpoint's are taken out, TensorBoard is told to forget them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from profiles.documents import write_text
from runtime.training import Training

Entry = Mapping[str, Any]  # "step", counted from 1, and numbers by name


class Journal(Protocol):
    """Takes entries in the order of their steps."""

    def write(self, entry: Entry) -> None:
        """One entry, whole."""

    def close(self) -> None:
        """All is written when this returns."""


class JsonLines:
    """A file with one JSON object a line, each written at once."""

    def __init__(self, path: Path, done: int) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        if done and path.exists():
            lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
            kept = [line for line in lines if json.loads(line)["step"] <= done]
            write_text(path, "".join(kept))
        self._file = path.open("a" if done else "w", encoding="utf-8")

    def write(self, entry: Entry) -> None:
        """Add a line."""
        self._file.write(json.dumps(dict(entry)) + "\n")
        self._file.flush()

    def close(self) -> None:
        """Close the file."""
        self._file.close()


class TensorBoard:
    """Event files in a folder, by torch's writer."""

    def __init__(self, folder: Path, done: int) -> None:
        from torch.utils.tensorboard.writer import SummaryWriter

        self._writer: Any = SummaryWriter(str(folder), purge_step=done + 1)

    def write(self, entry: Entry) -> None:
        """Add a scalar for each number."""
        for name, value in entry.items():
            if name != "step":
                self._writer.add_scalar(name, value, entry["step"])

    def close(self) -> None:
        """Flush and close the event file."""
        self._writer.close()


def journals(training: Training, done: int) -> list[Journal]:
    """All that *training* asks for, of a run that goes on after *done* steps."""
    found: list[Journal] = []
    if training.log:
        found.append(JsonLines(Path(training.log), done))
    if training.tensorboard:
        found.append(TensorBoard(Path(training.tensorboard), done))
    return found
