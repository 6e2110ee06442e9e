"""Three runs of a published family, given to calibrate, foretell its others better."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from statistics import fmean

from costmodel.runs.calibrate import calibrated_by
from costmodel.runs.comparison import Compared
from costmodel.runs.pricing import ask_runs
from costmodel.runs.seen_runs import Seen, SeenRuns
from costmodel.runs.table import Run
from costmodel.runs.validate import compare
from tests.support.published_runs import compared_runs, needs_data

FEWEST, GIVEN, FORETOLD = 8, 3, 12


def families() -> list[list[Compared]]:
    """Families of many runs whose times are measured, some of each."""
    found: dict[str, list[Compared]] = defaultdict(list)
    for item in compared_runs():
        if item.times:
            found[item.run.cell("family")].append(item)
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


def missed(runs: Iterable[Compared]) -> list[float]:
    pairs = [item.times for item in runs if item.times]
    return [abs(estimated / measured - 1) for estimated, measured in pairs]


@needs_data
def test_three_runs_of_a_family_help_its_others() -> None:
    """The coefficients know these families, so that there is less to learn than of an
    unknown one (`benchmarks.learning_curves` leaves them out)."""
    before, after = [], []
    for own in families():
        given = own[:: len(own) // GIVEN][:GIVEN]
        rest = [item for item in own if item not in given]
        calibration = calibrated_by(seen([item.run for item in given]))
        before.append(fmean(missed(rest)))
        foretold = compare([item.run for item in rest], calibration)
        after.append(fmean(missed(foretold)))
    assert len(before) > 10
    assert fmean(after) < fmean(before)
    much_worse = [a > b + 0.05 for a, b in zip(after, before, strict=True)]
    assert sum(much_worse) <= len(before) // 10
