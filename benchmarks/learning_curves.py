"""Learning curves: errors on the rest of a family once some of its runs are given.

    MESHWRIGHT_DATA=<folder> python -m benchmarks.fit_runs --keep fit.npz
    MESHWRIGHT_DATA=<folder> python -m benchmarks.learning_curves fit.npz [--draw FILE]

Coefficients are those fitted without the run's family, or without its source. Means are
over runs, at most 60 of a family; the runs given are drawn three times. `inside` is the
share between p10 and p90. Last comes which sources one given run made worse by more
than a tenth.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from benchmarks.fit.held_out import GIVEN, Foretold, HeldOut
from benchmarks.fit_runs import kept
from benchmarks.panels import panels
from benchmarks.run_times import timed_runs
from costmodel.runs.prior import load_prior

WORSE = 1.1
SEVERAL = 5  # families of a source, for the law that one row never hurts much
ALL = "all"
MOST = 0.2  # of a drawing


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("fit", type=Path)
    parser.add_argument("--draw", type=Path, metavar="FILE.svg")
    wish = parser.parse_args(arguments)
    folder = os.environ.get("MESHWRIGHT_DATA")
    if not folder:
        print("set MESHWRIGHT_DATA to the folder of measurements", file=sys.stderr)
        return 2
    runs = timed_runs(Path(folder) / "runs.csv")
    fit, prior = kept(wish.fit, runs), load_prior()
    for column in ("family", "source"):
        table = HeldOut(runs=runs, fit=fit, column=column)
        found = list(table.foretold(prior))
        families = len(list(table.families()))
        print(f"\nfitted without the run's {column}; {families} families")
        show(found)
        one_given(found)
        if wish.draw:
            path = wish.draw.with_stem(f"{wish.draw.stem}-{column}")
            path.write_text(drawn(found, column), encoding="utf-8")
    return 0


def parts(found: Sequence[Foretold]) -> Mapping[str, list[Foretold]]:
    """By source, the largest first, and all."""
    sources: dict[str, list[Foretold]] = defaultdict(list)
    for one in found:
        sources[one.source].append(one)
    ordered = sorted(sources.items(), key=lambda item: -len(item[1]))
    return {ALL: list(found), **dict(ordered)}


def drawn(found: Sequence[Foretold], column: str) -> str:
    """Mean and median error over runs given, a panel a source."""
    lines = {
        name[:30]: {
            "mean": [float(errors(own, given).mean()) for given in GIVEN],
            "median": [float(np.median(errors(own, given))) for given in GIVEN],
        }
        for name, own in parts(found).items()
    }
    title = f"error (line: mean, dashes: median) over runs given; left out: {column}"
    return panels(lines, [str(given) for given in GIVEN], most=MOST, title=title)


def errors(found: Sequence[Foretold], given: int) -> NDArray[np.float64]:
    return np.concatenate([one.errors for one in found if one.given == given])


def show(found: Sequence[Foretold]) -> None:
    """Mean / median error by runs given; the share inside of all."""
    print(f"{'mean / median error %':38}" + "".join(f"{given:>13}" for given in GIVEN))
    for name, own in parts(found).items():
        cells = (errors(own, given) * 100 for given in GIVEN)
        words = (f"{each.mean():.1f} / {np.median(each):.1f}" for each in cells)
        print(f"{name[:36]:38}" + "".join(f"{one:>13}" for one in words))
    inside = (
        np.concatenate([one.inside for one in found if one.given == given]).mean()
        for given in GIVEN
    )
    print(f"{'inside p10-p90 (all)':38}" + "".join(f"{one:>13.0%}" for one in inside))


def one_given(found: Sequence[Foretold]) -> None:
    """Which sources, and how many families, one given run makes worse by a tenth."""
    worse: dict[str, list[bool]] = defaultdict(list)
    for name, own in parts(found).items():
        families: dict[str, dict[int, list[float]]] = defaultdict(
            lambda: defaultdict(list)
        )
        for one in own:
            families[one.family][one.given].append(float(one.errors.mean()))
        worse[name] = [
            bool(np.mean(each[1]) > WORSE * np.mean(each[0]))
            for each in families.values()
        ]
        before, after = (float(np.mean(errors(own, given))) for given in (0, 1))
        if name != ALL and after > WORSE * before:
            size = "" if len(families) >= SEVERAL else f" (only {len(families)})"
            print(f"one run given: {name} {before:.1%} -> {after:.1%}{size}")
    count = sum(worse[ALL])
    print(f"one run given: {count} of {len(worse[ALL])} families over a tenth worse")


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
