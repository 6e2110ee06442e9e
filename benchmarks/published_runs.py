"""Where a benchmark finds the table of published runs."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path


def asked_runs(arguments: Sequence[str]) -> Path | None:
    """The first of *arguments*, or the table in MESHWRIGHT_DATA; None, and a line on
    stderr, if there is neither."""
    if arguments:
        return Path(arguments[0])
    folder = os.environ.get("MESHWRIGHT_DATA")
    if folder:
        return Path(folder) / "runs.csv"
    print("set MESHWRIGHT_DATA to the folder of measurements", file=sys.stderr)
    return None
