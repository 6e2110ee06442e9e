"""Runs fit as often as they were said to."""

from __future__ import annotations

import os
from pathlib import Path
from statistics import fmean

import pytest

from benchmarks.odds import Odds, Peaks, between, odds, odds_table
from costmodel.runs.run import Run, read_runs
from costmodel.validate import compare


def outcomes() -> list[Odds]:
    """Of the sources that print failures."""
    folder = os.environ.get("MESHWRIGHT_DATA")
    if not folder:
        pytest.skip("MESHWRIGHT_DATA does not name the folder of measurements")
    runs = read_runs(Path(folder) / "runs.csv")
    failed = {run.cell("source") for run in runs if ran_out(run)}
    return odds(compare(run for run in runs if run.cell("source") in failed))


def ran_out(run: Run) -> bool:
    return run.measured.get("oom") == "y"


def test_as_many_runs_fit_as_were_said_to() -> None:
    found = outcomes()
    sure, never = between(found, 0.95, 1.0), between(found, 0.0, 0.05)
    assert len(found) > 300
    assert fmean(one.ran for one in sure) >= 0.95
    assert fmean(one.ran for one in never) <= 0.05
    # Half a dozen to a dozen of each are no more exact than this.
    unsure = [between(found, 0.05, 0.5), between(found, 0.5, 0.95)]
    for here in unsure:
        said, ran = fmean(one.said for one in here), fmean(one.ran for one in here)
        assert ran == pytest.approx(said, abs=0.2)


def test_a_certain_run_is_among_the_surest() -> None:
    found = [Odds(said=said, ran=said > 0.5) for said in (0.0, 0.5, 0.99, 1.0)]
    assert len(between(found, 0.99, 1.0)) == 2
    assert len(between(found, 0.5, 0.75)) == 1
    assert len(odds_table(found)) == 4  # a head, and three lines


def test_the_share_of_peaks_inside_their_interval() -> None:
    found = Peaks(shares=[0.1] * 5, residuals=[-0.5, 1.0, 1.3, 2.0, -0.2])
    assert (found.sigma, found.inside) == (0.1, 0.6)
    wider = [one / found.seen for one in found.residuals]
    assert Peaks(shares=found.shares, residuals=wider).inside == 0.8
