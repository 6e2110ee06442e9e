"""Three runs of a published family, given to calibrate, foretell its others better."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean

import pytest

from costmodel.machine.calibration import Calibration
from costmodel.runs.calibrate import calibrated_by
from costmodel.runs.pricing import ask_runs
from costmodel.runs.seen_runs import Seen, SeenRuns
from costmodel.runs.table import Run, read_runs
from costmodel.runs.validate import compare

DATA = os.environ.get("MESHWRIGHT_DATA", "")
FEWEST, GIVEN, FORETOLD = 8, 3, 12


def families(runs: Sequence[Run]) -> list[list[Run]]:
    """Families of many runs whose times are measured, some of each."""
    found: dict[str, list[Run]] = defaultdict(list)
    for item in compare(runs):
        if item.times:
            found[item.run.cell("family")].append(item.run)
    large = [own for own in found.values() if len(own) >= FEWEST]
    return [own[:: max(len(own) // (GIVEN + FORETOLD), 1)] for own in large]


def seen(runs: Sequence[Run]) -> SeenRuns:
    return SeenRuns(
        runs=[
            Seen(
                row=str(item.run.row),
                job=item.question.job,
                layout=item.layout,
                machine=item.question.machine,
                step_time_s=float(item.run.measured["step_time_s"]),
                peak_bytes=None,
            )
            for item in ask_runs(runs)
            if item.question is not None and item.layout is not None
        ]
    )


def missed(runs: Sequence[Run], by: Calibration | None) -> list[float]:
    pairs = [item.times for item in compare(runs, by) if item.times]
    return [abs(estimated / measured - 1) for estimated, measured in pairs]


@pytest.mark.skipif(not DATA, reason="needs MESHWRIGHT_DATA, the published runs")
def test_three_runs_of_a_family_help_its_others() -> None:
    """The coefficients know these families, so that there is less to learn than of an
    unknown one (`benchmarks.learning_curves` leaves them out)."""
    before, after = [], []
    for own in families(read_runs(Path(DATA) / "runs.csv")):
        given = own[:: len(own) // GIVEN][:GIVEN]
        rest = [run for run in own if run not in given]
        before.append(fmean(missed(rest, None)))
        after.append(fmean(missed(rest, calibrated_by(seen(given)))))
    assert len(before) > 10
    assert fmean(after) < fmean(before)
    much_worse = [a > b + 0.05 for a, b in zip(after, before, strict=True)]
    assert sum(much_worse) <= len(before) // 10
