"""Runs of a user's own: rows of a table, what `execute --json` printed, or the profile
that `--observe` added to; each as a question with what was measured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import isfinite
from pathlib import Path
from typing import Any, Final

from costmodel.layout import Layout
from costmodel.machine import LeftOutRun, Machine, Profile, read_profile
from costmodel.options import Pins
from costmodel.runs.cells import Cells
from costmodel.runs.comparison import LEAST, MEMORY_KINDS
from costmodel.runs.pricing import Asked, ask_runs
from costmodel.runs.table import MEASURED, read_runs
from costmodel.simulation import job_of, machine_of, parse_file
from profiles.commandline import JobOptions
from profiles.errors import InvalidFile, InvalidSpec, MeshwrightError
from profiles.files import read_json, shown
from profiles.models import Job
from profiles.samples import read_samples
from profiles.units import GiB

ROUNDED: Final = "derived_from_tflops"
TELLING: Final = ("step_time_s", "tokens_per_s_per_gpu", "peak_memory_gib")
WRITES: Final = "a table of runs, or what `execute --json` or `--observe` wrote"


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """A question and what was measured: seconds of a step, and bytes of the fullest
    rank's peak by how they were counted. At least one of both is there."""

    row: str
    job: Job
    layout: Layout
    machine: Machine
    step_time_s: float | None
    peak_bytes: float | None
    peak_kind: str = "device"


@dataclass(kw_only=True)
class SeenRuns:
    """All that can be used, and what cannot."""

    runs: list[Seen] = field(default_factory=list)
    left_out: list[LeftOutRun] = field(default_factory=list)

    def leave_out(self, row: str, why: str) -> None:
        self.left_out.append(LeftOutRun(row=row, why=why))


def read_seen(paths: Sequence[Path], profile: Profile | None = None) -> SeenRuns:
    """The runs of all files; those of the cluster `local` are priced by *profile*.

    Raises InvalidFile for a file of another kind, and where no row tells anything.
    """
    found = SeenRuns()
    for path in paths:
        if path.suffix.lower() == ".json":
            _of_document(path, profile, found)
        else:
            _of_table(path, found)
    if not found.runs:
        why = "there are no rows"
        if found.left_out:
            why = f"{found.left_out[0].row}: {found.left_out[0].why}"
        raise InvalidFile(
            f"--calibrate {', '.join(shown(path) for path in paths)}: no row can be "
            f"used: {why}"
        )
    return found


def _of_table(path: Path, found: SeenRuns) -> None:
    runs = read_runs(path)
    columns = {name for run in runs for name in run.measured}
    if runs and not columns.intersection(TELLING):
        kept = sorted({name for run in runs for name in run.kept})
        raise InvalidFile(
            f"--calibrate {shown(path)}: no column is measured; it needs "
            f"{', '.join(TELLING[:-1])} or {TELLING[-1]}"
            + (f" (unknown here: {', '.join(kept[:6])})" if kept else "")
        )
    for item in ask_runs(runs):
        row = f"{path.name}, row {item.run.row + 1}"
        try:
            _take(row, item, found)
        except InvalidSpec as error:
            found.leave_out(row, str(error))


def _take(row: str, item: Asked, found: SeenRuns) -> None:
    if item.question is None or item.layout is None:
        found.leave_out(row, item.error or "it asks nothing")
        return
    cells = Cells(text=item.run.measured)
    seconds = cells.number("step_time_s", least=LEAST)
    rate = cells.number("tokens_per_s_per_gpu", least=LEAST)
    peak = cells.number("peak_memory_gib", least=LEAST)
    kind = cells.word("peak_memory_kind") or MEMORY_KINDS[0]
    if kind not in MEMORY_KINDS:
        raise cells.wrong("peak_memory_kind", f"one of {', '.join(MEMORY_KINDS)}")
    job, layout = item.question.job, item.layout
    if seconds is None and rate is not None:
        seconds = job.tokens / rate / layout.gpus
    if cells.word("step_time_origin") == ROUNDED:
        seconds = None
    if seconds is None and peak is None:
        told = [name for name in MEASURED if name in item.run.measured]
        has = told or "no cell"
        found.leave_out(row, f"it has no measured value that calibration uses ({has})")
        return
    found.runs.append(
        Seen(
            row=row,
            job=job,
            layout=layout,
            machine=item.question.machine,
            step_time_s=seconds,
            peak_bytes=None if peak is None else peak * GiB,
            peak_kind=kind,
        )
    )


def _of_document(path: Path, profile: Profile | None, found: SeenRuns) -> None:
    document = read_json(path, what="the file of runs")
    top = document if isinstance(document, dict) else {}
    if top.get("format") == "meshwright/samples":
        samples = read_samples(path)
        runs: Sequence[Any] = samples.runs
        if not runs:
            raise InvalidFile(
                f"--calibrate {shown(path)} is a profile without runs; train with "
                "`execute --observe` to add one, or name it by --profile"
            )
        profile = profile or read_profile([path])
    elif "layout_file" in top:
        runs = (top,)
    else:
        raise InvalidFile(f"--calibrate {shown(path)} is not {WRITES}")
    for number, run in enumerate(runs, 1):
        row = path.name if len(runs) == 1 else f"{path.name}, run {number}"
        try:
            found.runs.append(_executed(row, run, profile))
        except MeshwrightError as error:
            found.leave_out(row, str(error))


def _executed(row: str, run: Any, profile: Profile | None) -> Seen:
    """A run that `execute` reported."""
    file = parse_file(run.get("layout_file") if isinstance(run, Mapping) else None)
    seconds = _number(run.get("step_time_s"), "median")
    peaks = [one for one in run.get("peak_allocated_bytes") or () if _is_size(one)]
    if seconds is None:
        raise InvalidFile("no step of it was timed; train more steps")
    samples = profile.samples if profile else None
    on = machine_of(file, JobOptions(), Pins(), samples, {})
    return Seen(
        row=row,
        job=job_of(file),
        layout=file.layout,
        machine=on.running(file.gpus),
        step_time_s=seconds,
        peak_bytes=float(max(peaks)) if peaks else None,
        peak_kind="allocated",
    )


def _number(table: Any, name: str) -> float | None:
    value: Any = table.get(name) if isinstance(table, Mapping) else None
    return float(value) if _is_size(value) else None


def _is_size(value: Any) -> bool:
    plain = isinstance(value, int | float) and not isinstance(value, bool)
    return plain and isfinite(value) and value > LEAST
