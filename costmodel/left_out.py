"""Errors of runs that the fit never saw: without their family, without their source.

`data/left_out.csv` has one line a run that counts, as `benchmarks/fit_runs.py` writes
it: its `id`, the measured seconds, and those estimated by coefficients fitted to all
runs (`fit_s`), to all but its family's, and to all but its source's. What was measured
is there so that no other table's rows are taken for these.
"""

from __future__ import annotations

import csv
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from statistics import fmean, median
from typing import Final

from profiles.errors import InvalidFile

PATH: Final = Path(__file__).parent / "data" / "left_out.csv"
COLUMNS: Final = (
    "id",
    "measured_s",
    "fit_s",
    "without_family_s",
    "without_source_s",
)
SAME: Final = 1e-3  # relative; more is another run


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftOut:
    """One run: what was measured, and three estimates of it. Seconds of a step."""

    id: str
    measured_s: float
    fit_s: float
    without_family_s: float
    without_source_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Errors:
    """|estimate / measured - 1| of some runs; None of none."""

    rows: int
    mean: float | None
    median: float | None
    by_source: float | None  # the mean over sources of their means


def read_left_out(path: Path = PATH) -> Mapping[str, LeftOut]:
    """The runs of the file by id; none if it is not there.

    Raises InvalidFile for another table.
    """
    if not path.exists():
        return {}
    with path.open(newline="", encoding="utf-8") as file:
        table = csv.DictReader(file)
        if tuple(table.fieldnames or ()) != COLUMNS:
            raise InvalidFile(f"{path} must have the columns {', '.join(COLUMNS)}")
        try:
            found = [_run(row) for row in table]
        except ValueError as error:
            raise InvalidFile(f"{path}: {error}") from error
    return {item.id: item for item in found}


@lru_cache(maxsize=1)
def left_out() -> Mapping[str, LeftOut]:
    """Those of the coefficients in use."""
    return read_left_out()


def written(runs: Iterable[LeftOut]) -> str:
    """The file's text."""
    lines = [",".join(COLUMNS)]
    lines += [
        f"{run.id},{run.measured_s:.6g},{run.fit_s:.6g},{run.without_family_s:.6g},"
        f"{run.without_source_s:.6g}"
        for run in runs
    ]
    return "\n".join(lines) + "\n"


def same_run(run: LeftOut, measured_s: float) -> bool:
    """Whether *run* is the one that took *measured_s*."""
    return abs(run.measured_s / measured_s - 1) <= SAME


def errors_of(runs: Iterable[tuple[str, float, float]]) -> Errors:
    """Of runs as (source, estimated, measured).

    >>> errors_of([("a", 1.1, 1.0), ("a", 1.0, 1.0), ("b", 1.2, 1.0)]).rows
    3
    """
    sizes: dict[str, list[float]] = defaultdict(list)
    for source, estimated, measured in runs:
        sizes[source].append(abs(estimated / measured - 1))
    every: Sequence[float] = [size for found in sizes.values() for size in found]
    if not every:
        return Errors(rows=0, mean=None, median=None, by_source=None)
    return Errors(
        rows=len(every),
        mean=fmean(every),
        median=median(every),
        by_source=fmean(fmean(found) for found in sizes.values()),
    )


def _run(row: Mapping[str, str]) -> LeftOut:
    seconds = {name: float(row[name]) for name in COLUMNS[1:]}
    return LeftOut(id=row["id"], **seconds)
