"""`Compared`: a priced run beside what was measured, and whether it counts.

A run counts for step time where it is measured or derived from tokens per second,
complete (shape, layout, batch, cluster), pretraining or fine-tuning of all weights,
dense or with experts, without offload; not where its time was inverted from a rounded
TFLOP/s figure.

Features of a run by which its error is told apart: what it uses, and how large.
"""

from __future__ import annotations

import csv
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from statistics import fmean, median
from typing import Any, Final

from costmodel.layout import PRESETS
from costmodel.runs.cells import Cells
from costmodel.runs.pricing import Priced
from costmodel.runs.settings import recompute_of
from costmodel.runs.table import Run
from costmodel.runs.workload import catalogued
from costmodel.simulation import Question
from profiles.errors import InvalidFile, InvalidSpec, MeshwrightError
from profiles.units import GiB

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


def features(asked: Question) -> Mapping[str, str]:
    """The value of each feature, in words.

    What a row leaves out is what its framework does by default.
    """
    choice, on = asked.choice, asked.machine
    kernel = (
        on.framework.kernels.flash
        if choice.flash_attention
        else on.framework.kernels.unfused
    )
    recompute = choice.recompute if choice.recompute in PRESETS else "operators"
    return {
        "recompute": recompute,
        "attention": kernel,
        "zero": str(choice.zero),
        "tp": _size(choice.tp),
        "pp": _size(choice.pp),
        "cp": _size(choice.cp),
        "precision": choice.precision,
        "nodes": "1" if choice.gpus <= on.cluster.islands[0].domain else "several",
        "gpus": _decade(choice.gpus),
    }


def _size(degree: int) -> str:
    """1, or more.

    >>> _size(1), _size(8)
    ('1', '> 1')
    """
    return "1" if degree == 1 else "> 1"


def _decade(gpus: int) -> str:
    """A span of sizes.

    >>> _decade(8), _decade(64), _decade(4096)
    ('up to 8', '9-128', '> 1024')
    """
    for most, words in ((8, "up to 8"), (128, "9-128"), (1024, "129-1024")):
        if gpus <= most:
            return words
    return "> 1024"


ORIGINS: Final = ("measured", "derived_from_tokens")
TASKS: Final = ("pretrain", "sft")
KINDS: Final = ("dense", "moe")
SHAPE: Final = ("layers", "hidden", "heads")
NUMBERS: Final = (
    "step_time_s",
    "tokens_per_s_per_gpu",
    "tflops_per_gpu",
    "mfu",
    "peak_memory_gib",
)
LEAST: Final = 1e-9  # of what was measured: no step, rate or memory is less
MEMORY_KINDS: Final = ("device", "reserved", "allocated")


@dataclass(frozen=True, kw_only=True)
class Compared:
    """A priced run beside what was measured; `measured` holds numbers where it can."""

    run: Run
    priced: Priced
    measured: Mapping[str, Any]
    error: str | None

    @cached_property
    def missing(self) -> tuple[str, ...]:
        """What the row does not say of shape, layout, batch and cluster."""
        asked = self.run.asked
        needed = ["tp", "pp", "global_batch", "gpus"]
        if not _is_catalogued(asked.get("model")):
            needed += [*SHAPE, "seq_len"]
        if not self._device_tells_links:
            needed.append("cluster")
        if "recompute_detail" in asked and not _is_told(asked):
            needed.append("recompute")
        return tuple(name for name in needed if name not in asked)

    @property
    def _device_tells_links(self) -> bool:
        """Whether links are given beside the device, or known to be those of it."""
        known = self.priced.price is not None
        return "device" in self.run.asked and (
            known or "intra_node_gb_per_s" in self.run.asked
        )

    @cached_property
    def counts(self) -> bool:
        """Whether the run counts in errors at all."""
        asked = self.run.asked
        return (
            self.priced.price is not None
            and asked.get("task", "pretrain") in TASKS
            and asked.get("kind", "dense") in KINDS
            and asked.get("offload", "none") == "none"
            and not self.missing
        )

    @cached_property
    def times(self) -> tuple[float, float] | None:
        """(estimated, measured) seconds of a step, if they are to be compared."""
        found = self.measured.get("step_time_s")
        known = self.measured.get("step_time_origin", "measured") in ORIGINS
        if not self.counts or not known or not isinstance(found, float) or not found:
            return None
        assert self.priced.price is not None
        return self.priced.price.step_time_s, found

    @cached_property
    def left_out(self) -> LeftOut | None:
        """What coefficients fitted without it say, if it counts and they are known; of
        a calibrated machine nothing is."""
        asked = self.priced.question
        if asked is not None and asked.machine.known is not None:
            return None
        known = left_out().get(self.run.key)
        if known is None or not self.times:
            return None
        return known if known.is_of(self.times[0] / self.times[1]) else None

    @cached_property
    def features(self) -> Mapping[str, str]:
        """By which errors are told apart; none of a run without a price."""
        return features(self.priced.question) if self.priced.question else {}

    @property
    def peaks(self) -> tuple[float, float] | None:
        """(estimated, measured) peak bytes of the kind that was measured."""
        found = self.measured.get("peak_memory_gib")
        if not self.counts or not isinstance(found, float) or not found:
            return None
        assert self.priced.price is not None
        kind = self.measured.get("peak_memory_kind", "device")
        if kind not in MEMORY_KINDS:
            return None
        return self.priced.price.peak_bytes[kind], found * GiB

    @property
    def verdict(self) -> str | None:
        """Of out of memory: true_positive …; None where it is not to be judged."""
        oom = self.measured.get("oom")
        if not self.counts or oom is None or "recompute" not in self.run.asked:
            return None
        assert self.priced.price is not None
        said = not self.priced.price.fits
        right = "true" if said == (oom == "y") else "false"
        return f"{right}_{'positive' if said else 'negative'}"


def compared_with(priced: Priced) -> Compared:
    """*priced* beside what its row measured; only now is that looked at."""
    cells, fault = Cells(text=priced.run.measured), priced.error
    measured: dict[str, Any] = {}
    for column in cells.text:
        try:
            measured[column] = _read(cells, column)
        except InvalidSpec as error:
            measured[column] = None
            fault = fault or str(error)
    return Compared(run=priced.run, priced=priced, measured=measured, error=fault)


def _read(cells: Cells, column: str) -> Any:
    if column in NUMBERS:
        return cells.number(column, least=LEAST)
    if column == "oom":
        return "y" if cells.flag(column) else "n"
    if column == "peak_memory_kind" and cells.text[column] not in MEMORY_KINDS:
        raise cells.wrong(column, f"one of {', '.join(MEMORY_KINDS)}, or empty")
    return cells.text[column]


def _is_told(asked: Mapping[str, str]) -> bool:
    """Whether the words about a partial policy say which operators it means."""
    try:
        recompute_of(Cells(text=asked))
    except MeshwrightError:
        return False
    return True


def _is_catalogued(name: str | None) -> bool:
    try:
        return catalogued(name) is not None
    except MeshwrightError:
        return False
