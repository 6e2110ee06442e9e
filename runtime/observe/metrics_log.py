"""`Journal`: what is written of a run while it goes on, one entry a step.

A run that is resumed goes on in the same files: of JSON lines those of later steps than
the checkpoint's are taken out, TensorBoard is told to forget them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from profiles.errors import InvalidFile
from profiles.files import require_file, require_folder, shown, unwritten, write_text
from runtime.observe.run_summary import number
from runtime.train import Training

Entry = Mapping[str, Any]  # "step", counted from 1, and numbers by name


class JsonLines:
    """A file with one JSON object a line, each written at once."""

    def __init__(self, path: Path, done: int) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        if done and path.exists():
            write_text(path, "".join(until(path, done)))
        self._file = path.open("a" if done else "w", encoding="utf-8")

    def write(self, entry: Entry) -> None:
        """Add a line; null is for what is not finite. Raises InvalidFile."""
        line = {name: number(value) for name, value in entry.items()}
        try:
            self._file.write(json.dumps(line) + "\n")
            self._file.flush()
        except OSError as error:
            raise unwritten(self._file.name, "--log", error) from error

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


Journal = JsonLines | TensorBoard  # takes entries in the order of their steps


def until(path: Path, done: int) -> list[str]:
    """The lines of a log until step *done*, without one that a dying run left torn.

    Raises InvalidFile for a file that is no log.
    """
    try:
        whole = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidFile(f"{_no_log(path)}: it cannot be read") from error
    *lines, last = whole.split("\n")
    if _step(last) is not None or (last and not last.startswith("{")):
        lines.append(last)
    steps = [_step(line) for line in lines]
    if None in steps:
        number = steps.index(None) + 1
        raise InvalidFile(f"{_no_log(path)}: line {number} is no entry of a step")
    return [
        f"{line}\n"
        for line, step in zip(lines, steps, strict=True)
        if step is not None and step <= done
    ]


def _step(line: str) -> int | None:
    with suppress(ValueError):
        entry = json.loads(line)
        if isinstance(entry, dict) and isinstance(entry.get("step"), int):
            return int(entry["step"])
    return None


def _no_log(path: Path) -> str:
    return f"--log {shown(path)} exists and is not a log of a run; name another file"


def require_journals(training: Training, done: int) -> None:
    """Raise InvalidFile where one could not be written, or gone on with."""
    if training.log:
        log = Path(training.log)
        require_file(log, "--log")
        if log.is_file():  # another file is neither gone on with nor written over
            until(log, done)
    for option, folder in (
        ("--tensorboard", training.tensorboard),
        ("--trace", training.trace),
    ):
        if folder:
            require_folder(Path(folder), option)


def journals(training: Training, done: int) -> list[Journal]:
    """All that *training* asks for, of a run that goes on after *done* steps."""
    found: list[Journal] = []
    if training.log:
        found.append(JsonLines(Path(training.log), done))
    if training.tensorboard:
        found.append(TensorBoard(Path(training.tensorboard), done))
    return found
