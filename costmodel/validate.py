"""Estimates against measured runs: errors, ranks, regret, memory, out of memory.

    error     estimate / measured - 1, of every run that counts            → errors
    tau       (concordant - discordant) / pairs, within a group            → kendall_tau
    regret    what the run that looks fastest costs over the one that is   → regret
    mean over sources of the mean over groups                              → _by_source

A group is alike in family, GPUs, batch, kernels, precision and framework, and has four
runs or more. LoRA, SFT, hybrid, offloading and layout-less runs are priced but do not
count, nor do times that were inverted from a rounded TFLOP/s figure.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, median
from typing import Any, Final

import numpy as np

from costmodel.report.summary import summary_table
from costmodel.runs.cells import Cells
from costmodel.runs.prices import Priced, price_runs
from costmodel.runs.run import Run, read_runs
from profiles.errors import InvalidSpec
from profiles.units import GiB

__all__ = [
    "Compared",
    "compare",
    "compare_file",
    "document",
    "grouped",
    "summary",
    "summary_table",
]
GROUP: Final = (
    "family",
    "gpus",
    "global_batch",
    "attention_kernel",
    "fused_norm",
    "precision",
    "framework",
)
SMALLEST_GROUP: Final = 4
SAME: Final = 0.01  # measurements nearer than this are not told apart
NUMBERS: Final = (
    "step_time_s",
    "tokens_per_s_per_gpu",
    "tflops_per_gpu",
    "mfu",
    "peak_memory_gib",
)
MEMORY_KINDS: Final = ("device", "reserved", "allocated")


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """A priced run beside what was measured; `measured` holds numbers where it can."""

    run: Run
    priced: Priced
    measured: Mapping[str, Any]
    error: str | None

    @property
    def counts(self) -> bool:
        """Whether the run counts in errors at all."""
        asked = self.run.asked
        return (
            self.priced.price is not None
            and asked.get("task", "pretrain") == "pretrain"
            and asked.get("kind", "dense") in ("dense", "moe")
            and asked.get("offload", "none") == "none"
            and "tp" in asked
            and "pp" in asked
        )

    @property
    def times(self) -> tuple[float, float] | None:
        """(estimated, measured) seconds of a step, if they are to be compared."""
        found = self.measured.get("step_time_s")
        inverted = self.measured.get("step_time_origin") == "derived_from_tflops"
        if not self.counts or inverted or not isinstance(found, float) or not found:
            return None
        assert self.priced.price is not None
        return self.priced.price.step_time_s, found

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


def compare_file(path: Path) -> dict[str, Any]:
    """What `simulate --runs` prints for the table in *path*.

    Raises InvalidFile for a file that is no table of runs.
    """
    return document(list(compare(read_runs(path))))


def compare(runs: Iterable[Run]) -> Iterable[Compared]:
    """Price each run, and only then look at its measurements."""
    return (_compared(item) for item in price_runs(runs))


def document(compared: Sequence[Compared]) -> dict[str, Any]:
    """Every run with its estimate or error, and the summary."""
    return {
        "runs": [
            {
                "row": item.run.row,
                "estimate": item.priced.price and item.priced.price.document,
                "error": item.error,
                "measured": dict(item.measured),
                "kept": dict(item.run.kept),
            }
            for item in compared
        ],
        "summary": {
            **summary(compared),
            "by_source": grouped(compared, "source"),
            "by_device": grouped(compared, "device"),
        },
    }


def summary(compared: Sequence[Compared]) -> dict[str, Any]:
    """Errors of all runs together; a figure that nothing tells is None."""
    times = [item.times for item in compared if item.times]
    peaks = [item.peaks for item in compared if item.peaks]
    verdicts = [item.verdict for item in compared]
    step = errors(times)
    return {
        "rows": len(compared),
        "priced": sum(item.priced.price is not None for item in compared),
        "compared": len(times),
        "step_time_mape": _mean(map(abs, step)),
        "step_time_median_ape": median(map(abs, step)) if step else None,
        "step_time_bias": _mean(step),
        "kendall_tau": _over_groups(compared, kendall_tau),
        "regret": _over_groups(compared, regret),
        "peak_memory_mape": _mean(map(abs, errors(peaks))),
        "oom": {
            name: verdicts.count(name)
            for name in (
                "true_positive",
                "false_positive",
                "true_negative",
                "false_negative",
            )
        },
    }


def grouped(compared: Iterable[Compared], column: str) -> dict[str, dict[str, Any]]:
    """The summary of each part of the table that is alike in *column*."""
    parts: dict[str, list[Compared]] = defaultdict(list)
    for item in compared:
        parts[item.run.cell(column)].append(item)
    return {part: summary(items) for part, items in parts.items()}


def errors(pairs: Iterable[tuple[float, float]]) -> list[float]:
    """Estimated over measured, less 1.

    >>> errors([(3.0, 2.0), (1.0, 2.0)])
    [0.5, -0.5]
    """
    return [estimated / measured - 1 for estimated, measured in pairs]


def kendall_tau(pairs: Sequence[tuple[float, float]]) -> float | None:
    """(concordant - discordant) / pairs that measurements tell apart; None if none do.

    Equal estimates of unlike measurements count for neither (Kendall, 1938).

    >>> kendall_tau([(1.0, 1.0), (2.0, 3.0), (3.0, 2.0)])
    0.3333333333333333
    """
    estimated, measured = np.array(pairs, dtype=float).reshape(-1, 2).T
    first, second = np.triu_indices(len(measured), k=1)
    apart = measured[first] - measured[second]
    told = np.abs(apart) > SAME * np.minimum(measured[first], measured[second])
    if not told.any():
        return None
    agreed = np.sign(apart) * np.sign(estimated[first] - estimated[second])
    return float(agreed[told].mean())


def regret(pairs: Sequence[tuple[float, float]]) -> float:
    """How much longer the run estimated fastest took than the fastest one.

    >>> regret([(1.0, 1.5), (2.0, 1.0)])
    0.5
    """
    chosen = min(pairs, key=lambda pair: pair[0])
    return chosen[1] / min(measured for _, measured in pairs) - 1


def _over_groups(
    compared: Iterable[Compared],
    figure: Callable[[Sequence[tuple[float, float]]], float | None],
) -> float | None:
    """Mean over sources of the mean over groups of *figure*."""
    groups: dict[tuple[str, ...], list[tuple[float, float]]] = defaultdict(list)
    for item in compared:
        if item.times:
            alike = tuple(item.run.cell(name) for name in ("source", *GROUP))
            groups[alike].append(item.times)
    found: dict[str, list[float]] = defaultdict(list)
    for (source, *_), pairs in groups.items():
        value = figure(pairs) if len(pairs) >= SMALLEST_GROUP else None
        if value is not None:
            found[source].append(value)
    return _mean(fmean(values) for values in found.values())


def _compared(priced: Priced) -> Compared:
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
        return cells.number(column)
    if column == "oom":
        return "y" if cells.flag(column) else "n"
    if column == "peak_memory_kind" and cells.text[column] not in MEMORY_KINDS:
        raise cells.wrong(column, f"one of {', '.join(MEMORY_KINDS)}, or empty")
    return cells.text[column]


def _mean(values: Iterable[float]) -> float | None:
    found = list(values)
    return fmean(found) if found else None
