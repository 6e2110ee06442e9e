"""Published layers, measured and priced: errors by source.

    MESHWRIGHT_DATA=<folder> python -m benchmarks.layers [--each]

Reads layer_times.csv and mem_facts.csv of the folder; `--each` prints every layer.
"""

from __future__ import annotations

import os
import sys
from collections import defaultdict
from pathlib import Path
from statistics import fmean, median

from benchmarks.fit.published import rows
from benchmarks.fit.published_layers import Layer, layers

TABLES = ("layer_times.csv", "mem_facts.csv")


def main(arguments: list[str]) -> int:
    folder = os.environ.get("MESHWRIGHT_DATA")
    if not folder:
        print("set MESHWRIGHT_DATA to the folder of measurements", file=sys.stderr)
        return 2
    by_source: dict[str, list[Layer]] = defaultdict(list)
    for layer in layers(Path(folder)):
        by_source[layer.source].append(layer)
    print(
        f"{'source':34}{'layers':>7}{'mean':>8}{'median':>8}{'worst':>8}{'signed':>8}"
    )
    for source, found in by_source.items():
        errors = [layer.error for layer in found]
        sizes = [abs(error) for error in errors]
        figures = (fmean(sizes), median(sizes), max(sizes), fmean(errors))
        shown = "".join(f"{figure:8.1%}" for figure in figures)
        print(f"{source:34}{len(found):7}{shown}")
        if "--each" in arguments:
            for layer in found:
                print(f"    {layer.what:40}{layer.error:+7.1%}")
    held = ", ".join(f"{len(rows(Path(folder), name)):,} in {name}" for name in TABLES)
    print(f"rows: {held}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
