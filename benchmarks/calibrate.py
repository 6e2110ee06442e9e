"""Refit every rate from the folder named by MESHWRIGHT_DATA and print the table.

    MESHWRIGHT_DATA=<folder> python -m benchmarks.calibrate [--write]

Without --write nothing is changed. Each fit prints its parameters with their standard
errors and the residual: median and 90th percentile of the relative error, in brackets
on points that the fit did not see.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import msgspec

from benchmarks.fit_devices import all_rates
from benchmarks.fit_links import all_links
from costmodel.machine.collectives import LinkFile
from costmodel.machine.rates import RATES, Rates


def main(arguments: list[str]) -> int:
    folder = os.environ.get("MESHWRIGHT_DATA")
    if not folder:
        print("set MESHWRIGHT_DATA to the folder of measurements", file=sys.stderr)
        return 2
    rates = all_rates(Path(folder))
    links = all_links(Path(folder))
    if "--write" in arguments:
        for name, found in rates.items():
            _write(RATES / f"{name}.json", found)
        _write(RATES / "links.json", links)
    return 0


def _write(path: Path, value: Rates | LinkFile) -> None:
    document = _four_digits(msgspec.to_builtins(value))
    text = msgspec.json.format(msgspec.json.encode(document), indent=1)
    path.write_bytes(text + b"\n")


def _four_digits(value: Any) -> Any:
    """*value* with its numbers cut to what is known of them, and no empty member."""
    if isinstance(value, dict):
        return {k: _four_digits(item) for k, item in value.items() if item is not None}
    return float(f"{value:.4g}") if isinstance(value, float) else value


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
