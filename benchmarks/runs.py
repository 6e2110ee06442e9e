"""How fast a table of runs is priced, and priced again with other rates.

    MESHWRIGHT_DATA=<folder> python -m benchmarks.runs [FILE.csv]

FILE.csv is runs.csv of the folder unless given. Seconds are of one core: reading and
pricing from nothing; again with schedules compiled; what hangs on rates alone, as a
fit does it; and writing every estimate's document. Each schedule is simulated action
by action.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from time import process_time
from typing import TypeVar

from benchmarks.published_runs import asked_runs
from costmodel.runs.pricing import ask_runs, price_asked, price_runs
from costmodel.runs.table import read_runs
from costmodel.runs.validate import compare, document, whole_summary
from profiles.system.allocator import fewer_collections, keep_heap
from profiles.units import MiB

_T = TypeVar("_T")


def main(arguments: list[str]) -> int:
    path = asked_runs(arguments)
    if path is None:
        return 2
    keep_heap(512 * MiB)  # as `simulate` has it
    with fewer_collections():
        return measure(path)


def measure(path: Path) -> int:
    runs = timed("read", 1, lambda: read_runs(path))
    found = timed("priced", len(runs), lambda: list(price_runs(runs)))
    timed("priced again", len(runs), lambda: list(price_runs(runs)))
    asked = timed("asked", len(runs), lambda: ask_runs(runs))
    timed("priced as asked", len(runs), lambda: list(price_asked(asked)))
    compared = timed("compared", len(runs), lambda: list(compare(runs)))
    summary = timed("summary", len(runs), lambda: whole_summary(compared))
    timed("documents", len(runs), lambda: document(compared, summary))
    passes = sum(
        2 * item.layout.micro_batches * len(item.layout.stages)
        for item in asked
        if item.layout
    )
    priced = sum(item.price is not None for item in found)
    print(f"{len(runs):,} rows, {priced:,} priced, {passes:,} passes simulated")
    return 0


def timed(name: str, rows: int, call: Callable[[], _T]) -> _T:
    """Call, and print the seconds of this process's cores and rows a second."""
    start = process_time()
    found = call()
    seconds = process_time() - start
    speed = f"{rows / seconds:9,.0f} rows/s" if rows > 1 else ""
    print(f"{name:18}{seconds:7.2f} s{speed}")
    return found


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
