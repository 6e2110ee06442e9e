"""Fit `data/uncertainty.json` to the residuals of runs that the fit did not see.

    MESHWRIGHT_DATA=<folder> python -m benchmarks.fit_uncertainty [--write]

Quantile regression of log |log(measured / estimated)|, each estimate by coefficients
fitted without the run's family (`costmodel.runs.comparison`). A family of n runs weighs
n^0.5. A framework or device counts as seen on the families other than the run's own.
The regression is of the median: how much wider one run's residual is than another's
shows in the middle, which a few runs in the tails do not move.
The level is then moved so that 80 % of all runs lie in their intervals, or as many,
down to 72.25 %, as a median half-width of 1.48 times the median error lets in:
residuals have heavy tails, and intervals that hold 80 % of them are too wide to be of
use.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from statistics import median

import msgspec
import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize

from costmodel.runs.comparison import Compared
from costmodel.runs.table import read_runs
from costmodel.runs.validate import compare
from costmodel.simulation.question import Question
from costmodel.simulation.uncertainty import PATH, Calibration, exchanged_share, rarity

Floats = NDArray[np.float64]
Named = Callable[[Compared], str]
LEVEL = 0.8  # p10 to p90
MIDDLE = 0.5  # the quantile whose regression tells how widths differ
LEAST = 0.003  # residuals are not told apart below it
# What few runs tell stays near: a new framework or device misses about twice as far,
# and so does a step that is all exchange.
PRIOR = np.array([0.7, 0.7, 0.7])
HELD = 0.5  # how firmly: the loss of being 1 off
FEWEST = 0.7225  # of runs inside
WIDEST = 1.48  # median half-width over median error


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


def fitted(runs: Sequence[Compared]) -> Calibration:
    """The calibration by the residuals of *runs*."""
    sizes, design, weights = residuals(runs), features(runs), family_weights(runs)
    values = regression(np.log(sizes + LEAST), design, weights)
    widths = np.exp(design @ values)
    widest = WIDEST * np.median(sizes) / np.median(widths)
    least, most = np.quantile(sizes / widths, (FEWEST, LEVEL))
    widths *= (factor := float(np.clip(widest, least, most)))
    framework, device, exchange = (float(round(one, 3)) for one in values[1:])
    return Calibration(
        step=round(factor * float(np.exp(values[0])), 4),
        framework=framework,
        device=device,
        exchange=exchange,
        frameworks=families(runs, framework_of),
        devices=families(runs, device_of),
        rows=len(runs),
        inside=round(float(np.mean(sizes <= widths)), 3),
        half_over_error=round(float(np.median(widths) / np.median(sizes)), 2),
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


def residuals(runs: Iterable[Compared]) -> Floats:
    """|log(measured / estimated)|, their family left out."""
    ratios = [item.left_out.without_family for item in runs if item.left_out]
    return np.abs(np.log(ratios))


def features(runs: Sequence[Compared]) -> Floats:
    """A row a run: 1, rarity of framework and of device, the share exchanged."""
    columns = [np.ones(len(runs))]
    for of in (framework_of, device_of):
        seen = families(runs, of)
        columns.append(np.array([rarity(seen[of(item)]) for item in runs]))
    columns.append(np.array([exchanged_by(item) for item in runs]))
    return np.stack(columns, axis=1)


def families(runs: Iterable[Compared], of: Named) -> dict[str, int]:
    """How many families of runs there are of each name."""
    seen: dict[str, set[str]] = defaultdict(set)
    for item in runs:
        seen[of(item)].add(item.run.cell("family"))
    return {name: len(seen[name]) for name in sorted(seen)}


def family_weights(runs: Sequence[Compared]) -> Floats:
    counts: dict[str, int] = defaultdict(int)
    for item in runs:
        counts[item.run.cell("family")] += 1
    weights = np.array([counts[item.run.cell("family")] ** -0.5 for item in runs])
    return np.asarray(weights / weights.mean())


def framework_of(item: Compared) -> str:
    return question_of(item).machine.framework.name


def device_of(item: Compared) -> str:
    return question_of(item).machine.device.name


def exchanged_by(item: Compared) -> float:
    assert item.priced.price is not None, "a run that counts was priced"
    return exchanged_share(item.priced.price.document["breakdown_s"])


def question_of(item: Compared) -> Question:
    assert item.priced.question is not None, "a run that counts was asked"
    return item.priced.question


def show(runs: Sequence[Compared], found: Calibration) -> None:
    """The numbers, and who lies inside."""
    print(msgspec.json.format(msgspec.json.encode(found), indent=1).decode())
    inside: dict[str, list[bool]] = defaultdict(list)
    halves = []
    for item, size in zip(runs, residuals(runs), strict=True):
        half = found.half_width(
            framework_of(item), device_of(item), exchanged=exchanged_by(item)
        )
        inside[item.run.cell("source")].append(bool(size <= half))
        halves.append(half)
    for source, held in sorted(inside.items(), key=lambda one: -len(one[1])):
        print(f"{source[:40]:42}{len(held):6}{sum(held) / len(held):7.0%}")
    print(f"median half-width {median(halves):.1%}")


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
