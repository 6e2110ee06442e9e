"""What happened in a run, over all its restarts, and the goodput that it had.

A file of JSON lines, to which the launcher of rank 0 and rank 0 itself add as it goes:

    started      an attempt: its ranks, machines and layout
    ready        it is about to do its first step, from a checkpoint or the beginning
    step         one is done: its number (from 1) and seconds
    saved        a checkpoint: of which step, and for how long training waited
    rolled_back  to which step

Each has the time at which it was added. What ran when a worker died is what came before
the next start; its last sign of life stands for the time of the failure.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from math import inf
from pathlib import Path
from statistics import fmean, median
from typing import Any, Final

from costmodel.training_run import FailureModel

FILE: Final = "history.jsonl"
Entry = Mapping[str, Any]


class History:
    """The file of a run, for one process that adds to it; nowhere, if None."""

    def __init__(self, path: Path | str | None) -> None:
        self._path = None if path is None else Path(path)

    def add(self, event: str, **values: Any) -> None:
        """Write a line at once. A run goes on without it where that cannot be."""
        if self._path is None:
            return
        line = json.dumps({"event": event, "time": time.time(), **values}) + "\n"
        with suppress(OSError):
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with self._path.open("a", encoding="utf-8") as file:
                file.write(line)

    def entries(self) -> list[Entry]:
        """All of them; a line that a dying process left torn is none."""
        if self._path is None or not self._path.exists():
            return []
        found: list[Entry] = []
        for line in self._path.read_text(encoding="utf-8").splitlines():
            with suppress(ValueError, TypeError, KeyError):
                entry = json.loads(line)
                found.append({**entry, "time": float(entry["time"])})
        return found


@dataclass(slots=True)
class Spent:
    """Seconds of a run from its first step on, by what they were spent on."""

    wall_s: float = 0.0
    trained_s: float = 0.0
    steps_s: dict[int, float] = field(default_factory=dict)  # the last time each ran
    saves_s: list[float] = field(default_factory=list)
    restarts_s: list[float] = field(default_factory=list)

    @property
    def progress_s(self) -> float:
        return sum(self.steps_s.values())

    @classmethod
    def of(cls, entries: Iterable[Entry], now: float) -> Spent:
        """Of a run that ends *now*; an attempt that was not yet ready when it failed
        belongs to the restart before it."""
        found = cls()
        first: float | None = None
        alive, waits = 0.0, False
        for entry in entries:
            event, at = entry["event"], entry["time"]
            if event == "started":
                waits = first is not None
                continue
            if event == "ready" and waits:
                found.restarts_s.append(at - alive)
                waits = False
            first = at if first is None else first
            if event == "step":
                found.steps_s[entry["step"]] = entry["seconds"]
                found.trained_s += entry["seconds"]
            elif event == "saved":
                found.saves_s.append(entry["seconds"])
            alive = at
        found.wall_s = 0.0 if first is None else now - first
        return found

    def document(self, every: int | None) -> dict[str, Any]:
        """`goodput` of a run that saved every so many steps: what was measured, and
        what `costmodel.training_run` says of as many failures."""
        failures = len(self.restarts_s)
        lost = {
            "restart": sum(self.restarts_s),
            "replay": self.trained_s - self.progress_s,
            "saving": sum(self.saves_s),
        }
        other = self.wall_s - self.progress_s - sum(lost.values())
        return {
            "measured": self.progress_s / self.wall_s if self.wall_s else None,
            **self._predicted(every),
            "wall_s": self.wall_s,
            "progress_s": self.progress_s,
            "lost_s": {**lost, "other": max(0.0, other)},
            "failures": failures,
            "restarts_s": self.restarts_s,
        }

    def _predicted(self, every: int | None) -> dict[str, float | None]:
        """None of a run that failed and never saved: it has no interval."""
        failures = len(self.restarts_s)
        if not self.steps_s or (failures and not (every and self.saves_s)):
            return {"predicted": None, "best_interval_s": None}
        save_s = median(self.saves_s) if self.saves_s else 0.0
        model = FailureModel(
            mtbf_s=self.wall_s / failures if failures else inf,
            checkpoint_s=save_s,
            restart_s=fmean(self.restarts_s) if failures else 0.0,
        )
        step_s = median(self.steps_s.values())
        interval_s = (every or len(self.steps_s)) * step_s + save_s
        best = model.best_interval_s
        return {
            "predicted": model.first_order(interval_s),
            "best_interval_s": None if best in (0, inf) else best,
        }


def layouts(entries: Sequence[Entry]) -> list[dict[str, Any]]:
    """Every layout that trained, and the step (done before) from which it did; an
    attempt that was like the one before is none of its own."""
    found: list[dict[str, Any]] = []
    started: Entry | None = None
    for entry in entries:
        if entry["event"] == "started":
            started = entry
        elif entry["event"] == "ready" and started is not None:
            one = {name: started[name] for name in ("gpus", "machines", "summary")}
            if not found or any(found[-1][name] != one[name] for name in one):
                found.append({"step": entry["step"], **one})
    return found


def words(goodput: Mapping[str, Any]) -> str:
    """The goodput of a run's document, on one line."""
    if not goodput["measured"]:
        return ""
    wall_s = goodput["wall_s"]
    parts = [
        f"{name} {seconds / wall_s:.1%}"
        for name, seconds in goodput["lost_s"].items()
        if seconds >= 0.0005 * wall_s
    ]
    count = goodput["failures"]
    failures = "no failure" if not count else f"{count} failure{'s' * (count > 1)}"
    predicted = goodput["predicted"]
    beside = "" if predicted is None else f" (predicted {predicted:.1%})"
    lost = f"; lost to {', '.join(parts)}" if parts else ""
    return f"goodput {goodput['measured']:.1%}{beside}: {failures}{lost}"
