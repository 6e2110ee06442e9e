"""Fit `data/uncertainty.json` to the residuals of runs that the fit did not see.

    MESHWRIGHT_DATA=<folder> python -m benchmarks.fit_uncertainty [--write]

Quantile regression of log |log(measured / estimated)|, each run twice: estimated by
coefficients fitted without its source and without its family
(`costmodel.runs.comparison`), as far from what was seen as it is without them.
A source of n runs weighs n^0.7, as in the fit. The regression is of the median: how
much wider one run's residual is than another's shows in the middle, which a few runs in
the tails do not move. The level is then such that 80 % of that weight of runs without
their source lies in its intervals.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize

from benchmarks.fit_runs import SHARED
from costmodel.runs.comparison import Compared
from costmodel.runs.table import read_runs
from costmodel.runs.validate import compare
from costmodel.simulation.uncertainty import (
    PATH,
    Calibration,
    Seen,
    Setting,
    exchanged_share,
)

Floats = NDArray[np.float64]
LEVEL = 0.8  # p10 to p90
MIDDLE = 0.5  # the quantile whose regression tells how widths differ
LEAST = 0.003  # residuals are not told apart below it
# What few runs tell stays near: a framework, device, operator or precision never seen
# misses about twice as far, and so does a step that is all exchange; each doubling of
# the GPUs a tenth more.
PRIOR = np.array([0.7, 0.7, 0.7, 0.7, 0.1, 0.7])
HELD = 0.5  # how firmly: the loss of being 1 off


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--write", action="store_true")
    asked = parser.parse_args(arguments)
    folder = os.environ.get("MESHWRIGHT_DATA")
    if not folder:
        print("set MESHWRIGHT_DATA to the folder of measurements", file=sys.stderr)
        return 2
    compared = list(compare(read_runs(Path(folder) / "runs.csv")))
    runs = [item for item in compared if item.left_out]
    if not runs:
        print("no run is left out in data/left-out.csv; run benchmarks.fit_runs first")
        return 1
    found = fitted(runs)
    show(runs, found)
    if asked.write:
        text = msgspec.json.format(msgspec.json.encode(found), indent=1)
        PATH.write_bytes(text + b"\n")
    return 0


@dataclass(frozen=True, kw_only=True)
class Residuals:
    """Of runs left out with all that is alike in a column: |log(measured / estimated)|,
    and how far each is from what is seen then."""

    sizes: Floats
    design: Floats

    @classmethod
    def of(cls, runs: Sequence[Compared], column: str) -> Residuals:
        ratios = [
            getattr(item.left_out, f"without_{column}")
            for item in runs
            if item.left_out
        ]
        parts = defaultdict(list)
        for item in runs:
            parts[item.run.cell(column)].append(item)
        known = {
            name: seen_in(item for item in runs if item.run.cell(column) != name)
            for name in parts
        }
        rows = [
            (
                1.0,
                *known[item.run.cell(column)].distances(setting_of(item)),
                exchanged_by(item),
            )
            for item in runs
        ]
        return cls(sizes=np.abs(np.log(ratios)), design=np.array(rows))


def fitted(runs: Sequence[Compared]) -> Calibration:
    """The calibration by the residuals of *runs*."""
    both = [Residuals.of(runs, column) for column in ("source", "family")]
    sizes, design = (
        np.concatenate([getattr(one, name) for one in both])
        for name in ("sizes", "design")
    )
    weights = np.tile((own := source_weights(runs)), len(both))
    values = regression(np.log(sizes + LEAST), design, weights)
    values[1:] = np.round(values[1:], 3)
    widths = [np.exp(one.design @ values) for one in both]
    factor = weighted_quantile(both[0].sizes / widths[0], own, LEVEL)
    inside = [
        round(float(np.mean(one.sizes <= factor * width)), 3)
        for one, width in zip(both, widths, strict=True)
    ]
    ratio = factor * np.median(widths[0]) / np.median(both[0].sizes)
    names = ("framework", "device", "operator", "precision", "scale", "exchange")
    return Calibration(
        step=round(factor * float(np.exp(values[0])), 4),
        **dict(zip(names, map(float, values[1:]), strict=True)),
        seen=seen_in(runs),
        rows=len(runs),
        inside=inside[0],
        inside_family=inside[1],
        half_over_error=round(float(ratio), 2),
    )


def regression(sizes: Floats, design: Floats, weights: Floats) -> Floats:
    """Coefficients of the `MIDDLE` quantile of *sizes*, held to `PRIOR`."""

    def loss(values: Floats) -> tuple[float, Floats]:
        away = sizes - design @ values
        pull = values[1:] - PRIOR
        slope = weights * np.where(away > 0, MIDDLE, MIDDLE - 1)
        gradient = -design.T @ slope
        gradient[1:] += 2 * HELD * pull
        return float(slope @ away + HELD * pull @ pull), gradient

    start = np.append(np.quantile(sizes, MIDDLE), PRIOR)
    return np.asarray(minimize(loss, start, jac=True, method="L-BFGS-B").x)


def seen_in(runs: Iterable[Compared]) -> Seen:
    """How many families of *runs* there are of each kind."""
    found: dict[str, dict[str, set[str]]] = {
        name: defaultdict(set)
        for name in ("frameworks", "devices", "operators", "precisions")
    }
    most = 1
    for item in runs:
        own, family = setting_of(item), item.run.cell("family")
        found["frameworks"][own.framework].add(family)
        found["devices"][own.device].add(family)
        found["precisions"][own.precision].add(family)
        for kind in own.operators:
            found["operators"][kind].add(family)
        most = max(most, own.gpus)
    counts = {
        name: {key: len(part[key]) for key in sorted(part)}
        for name, part in found.items()
    }
    return Seen(**counts, most_gpus=most)


def source_weights(runs: Sequence[Compared]) -> Floats:
    counts = Counter(item.run.cell("source") for item in runs)
    weights = [counts[item.run.cell("source")] ** -SHARED for item in runs]
    return np.asarray(weights / np.mean(weights))


def weighted_quantile(values: Floats, weights: Floats, level: float) -> float:
    """The least of *values* up to which lies *level* of the weight."""
    order = np.argsort(values)
    below = np.cumsum(weights[order]) / weights.sum()
    return float(values[order][np.searchsorted(below, level)])


def setting_of(item: Compared) -> Setting:
    asked = item.priced.question
    assert asked is not None, "a run that counts was asked"
    kinds = {one.kind for block, _ in asked.job.graph.blocks for one in block.operators}
    return Setting(
        framework=asked.machine.framework.name,
        device=asked.machine.device.name,
        operators=frozenset(kind.value for kind in kinds),
        precision=asked.choice.precision,
        gpus=asked.choice.gpus,
    )


def exchanged_by(item: Compared) -> float:
    assert item.priced.price is not None, "a run that counts was priced"
    return exchanged_share(item.priced.price.document["breakdown_s"])


def show(runs: Sequence[Compared], found: Calibration) -> None:
    """The numbers, and who lies inside without its source and its family."""
    print(msgspec.json.format(msgspec.json.encode(found), indent=1).decode())
    values = np.array([np.log(found.step), *found.far, found.exchange])
    held = []
    for column in ("source", "family"):
        left = Residuals.of(runs, column)
        widths = np.exp(left.design @ values)
        print(f"without their {column}: median half-width {np.median(widths):.1%}")
        held.append(left.sizes <= widths)
    sources: dict[str, list[int]] = defaultdict(list)
    for row, item in enumerate(runs):
        sources[item.run.cell("source")].append(row)
    for source, rows in sorted(sources.items(), key=lambda one: -len(one[1])):
        shares = "".join(f"{one[rows].mean():7.0%}" for one in held)
        print(f"{source[:40]:42}{len(rows):6}{shares}")


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
