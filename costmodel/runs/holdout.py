"""Errors of runs that the fit never saw: without their family, without their source.

`data/left-out.csv` has a line a run, as `benchmarks/fit_runs.py` writes it: the run's
key (`runs.run`), and estimated over measured seconds of a step by coefficients fitted
to all runs (`fit`), to all but its family's, and to all but its source's. A run that is
not of the published table has no line.
"""

from __future__ import annotations

import csv
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from statistics import fmean, median
from typing import Final

from profiles.errors import InvalidFile

PATH: Final = Path(__file__).parents[1] / "data" / "left-out.csv"
COLUMNS: Final = ("run", "fit", "without_family", "without_source")
SAME: Final = 0.1  # an estimate farther from `fit` is by another model


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftOut:
    """One run: estimated over measured seconds, by three fits."""

    run: str
    fit: float
    without_family: float
    without_source: float

    def is_of(self, ratio: float) -> bool:
        """Whether this is the run that is estimated at *ratio* of what it took."""
        return abs(ratio / self.fit - 1) <= SAME


@dataclass(frozen=True, slots=True, kw_only=True)
class Errors:
    """|estimate / measured - 1| of some runs; None of none."""

    rows: int
    mean: float | None
    median: float | None
    by_source: float | None  # the mean over sources of their means


def read_left_out(path: Path = PATH) -> Mapping[str, LeftOut]:
    """The runs of the file by their keys; none if it is not there.

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
        except (TypeError, ValueError) as error:
            raise InvalidFile(f"{path}: {error}") from error
    return {item.run: item for item in found}


@lru_cache(maxsize=1)
def left_out() -> Mapping[str, LeftOut]:
    """Those of the coefficients in use."""
    return read_left_out()


def errors_of(runs: Iterable[tuple[str, float]]) -> Errors:
    """Of runs as (source, estimated over measured).

    >>> errors_of([("a", 1.1), ("a", 1.0), ("b", 0.8)]).rows
    3
    """
    sizes: dict[str, list[float]] = defaultdict(list)
    for source, ratio in runs:
        sizes[source].append(abs(ratio - 1))
    every = [size for found in sizes.values() for size in found]
    if not every:
        return Errors(rows=0, mean=None, median=None, by_source=None)
    return Errors(
        rows=len(every),
        mean=fmean(every),
        median=median(every),
        by_source=fmean(fmean(found) for found in sizes.values()),
    )


def _run(row: Mapping[str, str]) -> LeftOut:
    ratios = {name: float(row[name]) for name in COLUMNS[1:]}
    return LeftOut(run=row["run"], **ratios)
