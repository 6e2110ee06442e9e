"""The table of published runs, each beside its estimate; priced once a process."""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path

import pytest

from costmodel.runs.comparison import Compared
from costmodel.runs.table import read_runs
from costmodel.runs.validate import compare

DATA = os.environ.get("MESHWRIGHT_DATA", "")
needs_data = pytest.mark.skipif(
    not DATA, reason="needs MESHWRIGHT_DATA, the published runs"
)


@cache
def compared_runs() -> tuple[Compared, ...]:
    """Every run of the table, in its order."""
    return tuple(compare(read_runs(Path(DATA) / "runs.csv")))


def runs_of(*sources: str) -> list[Compared]:
    """Those whose source begins so."""
    return [
        one for one in compared_runs() if one.run.cell("source").startswith(sources)
    ]
