"""Price a table of published runs and print how far off the estimates are.

    MESHWRIGHT_DATA=<folder> python -m benchmarks.validate [FILE.csv]

FILE.csv is runs.csv of the folder unless given. Tables: by source, device, framework
and feature; then rows a second, pricing alone.
"""

from __future__ import annotations

import sys
import time

from benchmarks.published_runs import asked_runs
from costmodel.runs.comparison import Compared
from costmodel.runs.summary import errors_table, reasons, whole_words
from costmodel.runs.table import read_runs
from costmodel.runs.validate import compare, whole_summary
from profiles.commandline.terminal import console


def main(arguments: list[str]) -> int:
    path = asked_runs(arguments)
    if path is None:
        return 2
    runs = read_runs(path)
    start = time.perf_counter()
    compared = list(compare(runs))
    elapsed_s = time.perf_counter() - start
    _show(compared)
    print(f"{len(runs):,} rows in {elapsed_s:.1f} s: {len(runs) / elapsed_s:,.0f} /s")
    return 0


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
