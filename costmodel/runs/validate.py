"""Estimates against measured runs: errors, ranks, regret, memory, out of memory.

    error      estimate / measured - 1, of every run that counts      → errors
    tau        and regret, inside groups; over sources, over groups   → rank_order
    left out   errors of fits without the run's family, or its source → left_out

Which runs count is `compared`'s to say. A group is alike in family, GPUs, batch,
kernels, precision and framework, and has four runs or more: they differ in layout.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean, median
from typing import Any, Final

import numpy as np

from costmodel.machine import Calibration
from costmodel.runs.comparison import Compared, compared_with, errors_of
from costmodel.runs.pricing import price_runs
from costmodel.runs.summary import reason
from costmodel.runs.table import Run, read_runs

Pairs = Sequence[tuple[float, float]]  # estimated and measured seconds
Groups = Mapping[tuple[Any, Any], Pairs]  # by source, and by what is alike
SMALLEST_GROUP: Final = 4
SAME: Final = 0.01  # measurements nearer than this are not told apart


@dataclass(frozen=True, slots=True, kw_only=True)
class Means:
    """A figure of groups; None where there is no group."""

    by_source: float | None  # the mean over sources of the mean over groups
    by_group: float | None
    groups: int


def kendall_tau(pairs: Pairs) -> float | None:
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


def regret(pairs: Pairs) -> float:
    """How much longer the run estimated fastest took than the fastest one; of several
    estimated alike (one layout measured again) the mean, whatever their order.

    >>> regret([(1.0, 1.5), (2.0, 1.0)])
    0.5
    >>> regret([(1.0, 1.5), (1.0, 1.0)])
    0.25
    """
    least = min(estimated for estimated, _ in pairs)
    chosen = fmean(measured for estimated, measured in pairs if estimated == least)
    return chosen / min(measured for _, measured in pairs) - 1


def over_groups(
    groups: Groups,
    figure: Callable[[Pairs], float | None],
) -> Means:
    """*figure* of each (source, group) of four runs or more, averaged both ways."""
    found: dict[Any, list[float]] = defaultdict(list)
    for (source, _), pairs in groups.items():
        value = figure(pairs) if len(pairs) >= SMALLEST_GROUP else None
        if value is not None:
            found[source].append(value)
    every = [value for values in found.values() for value in values]
    return Means(
        by_source=mean([fmean(values) for values in found.values()]),
        by_group=mean(every),
        groups=len(every),
    )


def mean(values: Sequence[float]) -> float | None:
    """Their mean; None of nothing."""
    return fmean(values) if values else None


__all__ = [
    "Compared",
    "compare",
    "compare_file",
    "document",
    "errors",
    "grouped",
    "kendall_tau",
    "regret",
    "summary",
    "whole_summary",
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
# V100 GPT-2: repeats of one layout are up to 59 % apart.
REPORTED: Final = ("BigScience GPT-2 experiments",)  # not in means over sources


def compare_file(path: Path) -> dict[str, Any]:
    """What `simulate --runs` prints for the table in *path*.

    Raises InvalidFile for a file that is no table of runs.
    """
    compared = list(compare(read_runs(path)))
    return document(compared, whole_summary(compared))


def compare(
    runs: Iterable[Run], calibration: Calibration | None = None
) -> Iterable[Compared]:
    """Price each run, and only then look at its measurements."""
    return (compared_with(item) for item in price_runs(runs, calibration))


def document(compared: Sequence[Compared], found: Mapping[str, Any]) -> dict[str, Any]:
    """Every run with its estimate or error, and the summary that was *found*."""
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
        "summary": dict(found),
    }


def whole_summary(compared: Sequence[Compared]) -> dict[str, Any]:
    """The summary of all runs, and of their parts."""
    return {
        **summary(compared),
        "by_source": grouped(compared, "source"),
        "by_device": grouped(compared, "device"),
        "by_framework": grouped(compared, "framework"),
        "by_feature": by_feature(compared),
        "not_priced": dict(reasons(compared).most_common()),
    }


def summary(compared: Sequence[Compared]) -> dict[str, Any]:
    """Errors of all runs together; a figure that nothing tells is None."""
    counted = [item for item in compared if item.times]
    times = [item.times for item in counted if item.times]
    peaks = [item.peaks for item in compared if item.peaks]
    step = errors(times)
    groups = _groups(counted)
    tau, lost = over_groups(groups, kendall_tau), over_groups(groups, regret)
    complete = [item for item in compared if not item.missing]
    return {
        "rows": len(compared),
        "priced": sum(item.priced.price is not None for item in compared),
        "complete": len(complete),
        "complete_priced": sum(item.priced.price is not None for item in complete),
        "compared": len(times),
        "step_time_mape": mean([abs(size) for size in step]),
        "step_time_median_ape": median(map(abs, step)) if step else None,
        "step_time_mape_by_source": _by_source(counted),
        "step_time_bias": mean(step),
        "without_family": _without(counted, "without_family"),
        "without_source": _without(counted, "without_source"),
        "inside_interval": mean([float(_inside(item)) for item in counted]),
        "kendall_tau": tau.by_source,
        "kendall_tau_by_group": tau.by_group,
        "regret": lost.by_source,
        "regret_by_group": lost.by_group,
        "groups": lost.groups,
        "peak_memory_mape": mean([abs(size) for size in errors(peaks)]),
        "peaks_compared": len(peaks),
        "oom": _verdicts(compared),
    }


def grouped(compared: Iterable[Compared], column: str) -> dict[str, dict[str, Any]]:
    """The summary of each part of the table that is alike in *column*."""
    parts: dict[str, list[Compared]] = defaultdict(list)
    for item in compared:
        parts[item.run.cell(column)].append(item)
    return {part: summary(items) for part, items in parts.items()}


def by_feature(compared: Iterable[Compared]) -> dict[str, dict[str, dict[str, Any]]]:
    """The summary of runs that are alike in a feature, for each feature."""
    parts: dict[str, dict[str, list[Compared]]] = defaultdict(lambda: defaultdict(list))
    for item in compared:
        for name, value in item.features.items():
            parts[name][value].append(item)
    return {
        name: {value: summary(items) for value, items in sorted(values.items())}
        for name, values in parts.items()
    }


def reasons(compared: Iterable[Compared]) -> Counter[str]:
    """Why rows have no price, and how often."""
    return Counter(
        reason(item.error or "") for item in compared if item.priced.price is None
    )


def errors(pairs: Iterable[tuple[float, float]]) -> list[float]:
    """Estimated over measured, less 1.

    >>> errors([(3.0, 2.0), (1.0, 2.0)])
    [0.5, -0.5]
    """
    return [estimated / measured - 1 for estimated, measured in pairs]


def _groups(counted: Iterable[Compared]) -> Groups:
    """Times of runs that differ in layout only; repeats of one layout have no order."""
    groups: dict[tuple[Any, Any], list[tuple[float, float]]] = defaultdict(list)
    layouts: dict[tuple[Any, Any], set[frozenset[Any]]] = defaultdict(set)
    for item in counted:
        if item.times:
            alike = tuple(item.run.cell(name) for name in GROUP)
            group = (item.run.cell("source"), alike)
            groups[group].append(item.times)
            layouts[group].add(frozenset(item.run.asked.items()))
    return {group: times for group, times in groups.items() if len(layouts[group]) > 1}


def _by_source(counted: Iterable[Compared]) -> float | None:
    """The mean over sources of their mean error."""
    return errors_of(
        (source, item.times[0] / item.times[1])
        for item in counted
        for source in [item.run.cell("source")]
        if item.times and not source.startswith(REPORTED)
    ).by_source


def _without(counted: Iterable[Compared], name: str) -> dict[str, Any]:
    """Errors where the fit did not see a run's family, or its source."""
    return asdict(
        errors_of(
            (item.run.cell("source"), getattr(known, name))
            for item in counted
            for known in [item.left_out]
            if known is not None
        )
    )


def _inside(item: Compared) -> bool:
    """Whether a step took what its interval says."""
    assert item.times is not None
    assert item.priced.price is not None
    low, high = item.priced.price.interval_s
    return low <= item.times[1] <= high


def _verdicts(compared: Iterable[Compared]) -> dict[str, int]:
    found = Counter(item.verdict for item in compared)
    return {
        name: found[name]
        for name in (
            "true_positive",
            "false_positive",
            "true_negative",
            "false_negative",
        )
    }
