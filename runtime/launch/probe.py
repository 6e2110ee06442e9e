"""`execute LAYOUT.json --probe`: the layouts of `plan --probe K`, each measured; the
fastest is trained.

They lie beside LAYOUT.json as probe-1.json, probe-2.json …, of the same job on as many
ranks. Each is run twice, the second time in the opposite order, so that a machine that
slows down meets all alike.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import count, takewhile
from pathlib import Path
from statistics import fmean
from typing import Any, Final

from costmodel.simulation import LayoutFile, fingerprint, job_of, parse_file
from profiles.errors import Contradiction, InvalidFile
from profiles.files import read_json, shown
from runtime.launch.run import prepare
from runtime.observe import WARM_UP_STEPS
from runtime.train import RunOptions, Training

TIMED_STEPS: Final = 5
ROUNDS: Final = 2
Say = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Probed:
    """A layout that was measured: seconds a step, the median of each round."""

    file: Path
    predicted_s: float | None
    rounds_s: tuple[float, ...]

    @property
    def measured_s(self) -> float:
        return fmean(self.rounds_s)

    @property
    def apart(self) -> float:
        """How far its rounds are apart, over their mean."""
        return (max(self.rounds_s) - min(self.rounds_s)) / self.measured_s

    def document(self, best: Probed) -> dict[str, Any]:
        """As `execute --json` prints it; is it as fast as *best*, by what was seen?"""
        slower = self.measured_s / best.measured_s - 1
        return {
            "file": str(self.file),
            "predicted_s": self.predicted_s,
            "measured_s": self.measured_s,
            "rounds_s": list(self.rounds_s),
            "slower": slower,
            "distinguishable": slower > max(self.apart, best.apart),
        }


def probed(options: RunOptions, say: Say) -> list[Probed]:
    """Measure every probe beside *options*'s layout, the fastest first.

    Raises InvalidFile where there is none, Contradiction for one of another job, and
    what `prepare` raises for one that cannot be carried out, before any is run.
    """
    if options.nnodes > 1 or options.elastic is not None:
        raise Contradiction(
            "--probe measures layouts one after another on one machine; leave "
            "--nnodes and --elastic out"
        )
    files = probe_files(options.layout)
    runs = {file: prepare(_short(options, file)) for file in files}
    rounds: dict[Path, list[float]] = {file: [] for file in files}
    for number in range(ROUNDS):
        for file in files if number % 2 == 0 else reversed(files):
            seen = runs[file].execute()
            rounds[file].append(seen["step_time_s"]["median"])
            say(f"probe: {shown(file)} takes {rounds[file][-1]:.4f} s a step")
    found = [
        Probed(file=file, predicted_s=_predicted(run), rounds_s=tuple(rounds[file]))
        for file, run in runs.items()
    ]
    return sorted(found, key=lambda one: one.measured_s)


def probe_files(layout: Path) -> list[Path]:
    """probe-1.json … beside *layout*, all of its job; raises as `probed`."""
    named = (layout.parent / f"probe-{number}.json" for number in count(1))
    files = list(takewhile(Path.exists, named))
    if not files:
        raise InvalidFile(
            f"there is no probe-1.json beside {shown(layout)}; write the layouts worth "
            f"measuring with plan --probe K --out {shown(layout)}"
        )
    wanted = _of(layout)
    for file in files:
        found = _of(file)
        if _asked(found) != _asked(wanted):
            raise Contradiction(
                f"{shown(file)} is of another job or another number of ranks than "
                f"{shown(layout)}; write both with one plan --probe K --out"
            )
    return files


def words(found: Sequence[Probed]) -> str:
    """What was picked, and how sure that is."""
    best = found[0]
    alike = [
        shown(one.file)
        for one in found[1:]
        if not one.document(best)["distinguishable"]
    ]
    doubt = f"; not distinguishable from it: {', '.join(alike)}"
    return f"picked {shown(best.file)}{doubt if alike else ''}"


def _short(options: RunOptions, file: Path) -> RunOptions:
    """Just the steps that are timed; nothing is saved, observed or printed."""
    return replace(
        options,
        layout=file,
        steps=WARM_UP_STEPS + TIMED_STEPS,
        checkpoint_dir=None,
        checkpoint_every=None,
        resume=False,
        record=False,
        observe=None,
        training=Training(),
        progress=False,
    )


def _of(file: Path) -> LayoutFile:
    return parse_file(read_json(file, what="layout file"))


def _asked(file: LayoutFile) -> tuple[dict[str, Any], int]:
    return fingerprint(job_of(file)), file.gpus


def _predicted(run: Any) -> float | None:
    found = run.prediction.held_against
    return None if found is None else float(found.step_time_s)
