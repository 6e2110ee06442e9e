"""The attempts of a run on one machine: the layout of each, and what came of them."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

from costmodel.simulation import LayoutFile
from profiles.files import read_json
from runtime.checkpoint import latest, step_of
from runtime.launch.agent import Attempt
from runtime.launch.history import FILE, History, Spent, layouts
from runtime.launch.replan import Layouts, degrees
from runtime.train import RunOptions


class Writes(Protocol):
    """A request to workers, which writes itself into a file."""

    def write(self, path: Path) -> None:
        """For the workers."""


Ask = Callable[[LayoutFile, Path, Path], Writes]  # by layout, result and history


class Attempts:
    """What workers are asked in *folder*, and what they answer there.

    The history is there too; that of machines that come and go is in the folder of
    checkpoints, which they share.
    """

    def __init__(
        self, *, folder: Path, options: RunOptions, planned: Layouts, ask: Ask
    ) -> None:
        self.asked, self._result = folder / "request.json", folder / "result.json"
        self.file = planned.file
        self._options, self._planned, self._ask = options, planned, ask
        shared = options.checkpoint_dir if options.elastic else None
        self._place = (folder if shared is None else shared.absolute()) / FILE
        self._history = History(self._place)
        self._write()

    def prepare(self, attempt: Attempt) -> str:
        """Choose the layout for the ranks that are there; says what it is, if it is
        another. Raises RunFailed where none fits."""
        before, self.file = self.file, self._planned.of(attempt.ranks)
        self._write()
        if attempt.has_rank_0:
            self._history.add(
                "started",
                gpus=attempt.ranks,
                machines=attempt.machines,
                summary=self.file.layout.summary,
            )
        if self.file is before:
            return ""
        folder = self._options.checkpoint_dir
        newest = None if folder is None else latest(folder)
        return (
            f"{attempt.machines} of {self._options.machines[1]} machines: "
            f"{degrees(before)} → {degrees(self.file)}, from step "
            f"{0 if newest is None else step_of(newest)}"
        )

    def seen(self) -> dict[str, Any]:
        """What the workers found, and what happened to them; next to nothing where rank
        0 is on another machine."""
        if not self._result.exists():
            return {}
        found = read_json(self._result, what="the run's result")
        assert isinstance(found, dict)
        if "steps" not in found:  # of another rank: why it stopped
            return found
        entries = self._history.entries()
        spent = Spent.of(entries, time.time())
        return {
            **found,
            "layouts": layouts(entries),
            "goodput": spent.document(self._options.checkpoint_every),
        }

    def _write(self) -> None:
        self._ask(self.file, self._result, self._place).write(self.asked)
