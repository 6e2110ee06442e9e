"""Price a table of published runs and print how far off the estimates are.

    MESHWRIGHT_DATA=<folder> python -m benchmarks.validate [FILE.csv]

FILE.csv is runs.csv of the folder unless given. Tables: by source, device, framework
and feature; then rows a second, pricing alone.
"""

from __future__ import annotations

import math
import os
import sys
import time
from collections import Counter
from pathlib import Path
from statistics import NormalDist, quantiles

from costmodel.compared import Compared
from costmodel.rates import rates_of
from costmodel.report.summary import errors_table, reasons, whole_words
from costmodel.runs.run import read_runs
from costmodel.validate import compare, whole_summary
from profiles.catalog import device
from profiles.terminal import console

P90 = NormalDist().inv_cdf(0.9)


def main(arguments: list[str]) -> int:
    folder = os.environ.get("MESHWRIGHT_DATA")
    if not arguments and not folder:
        print("set MESHWRIGHT_DATA to the folder of measurements", file=sys.stderr)
        return 2
    path = Path(arguments[0]) if arguments else Path(folder or "") / "runs.csv"
    runs = read_runs(path)
    start = time.perf_counter()
    compared = list(compare(runs))
    elapsed_s = time.perf_counter() - start
    _show(compared)
    print_spread(compared)
    print(f"{len(runs):,} rows in {elapsed_s:.1f} s: {len(runs) / elapsed_s:,.0f} /s")
    return 0


def print_spread(compared: list[Compared]) -> None:
    """The constants of `costmodel.uncertainty`, made anew."""
    steps: dict[bool, list[tuple[str, float]]] = {True: [], False: []}
    peaks: list[float] = []
    for item in compared:
        if item.times:
            own = rates_of(device(item.run.cell("device"))).kin is None
            size = abs(math.log(item.times[1] / item.times[0]))
            steps[own].append((item.run.cell("source"), size))
        if item.peaks:
            peaks.append(abs(math.log(item.peaks[1] / item.peaks[0])))
    for own, sizes in steps.items():
        kind = "own rates" if own else "borrowed rates"
        print(
            f"spread of step time, {kind}: {_by_source(sizes):.2f}, rows {len(sizes)}"
        )
    most = quantiles(peaks, n=10)[7] / P90
    print(f"spread of peak memory: {most:.2f}, rows {len(peaks)}")


def _by_source(sizes: list[tuple[str, float]]) -> float:
    """The 80 % quantile with every source weighing the same, as a deviation."""
    counts = Counter(source for source, _ in sizes)
    reached, total = 0.0, float(len(counts))
    for source, size in sorted(sizes, key=lambda one: one[1]):
        reached += 1 / counts[source]
        if reached >= 0.8 * total:
            return size / P90
    return math.nan


def _show(compared: list[Compared]) -> None:
    screen = console()
    whole = whole_summary(compared)
    for column in ("source", "device", "framework"):
        parts = {**whole[f"by_{column}"], "all": whole}
        screen.print(errors_table(column, parts), "")
    for name, parts in whole["by_feature"].items():
        screen.print(errors_table(name, parts), "")
    for line in (*whole_words(whole), *reasons(whole["not_priced"])):
        screen.print(line)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
