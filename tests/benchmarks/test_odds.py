"""Runs fit as often as they were said to."""

from __future__ import annotations

import os
from collections.abc import Iterable
from math import log
from pathlib import Path
from statistics import NormalDist, fmean

import pytest

from benchmarks.odds import Odds, Peaks, between, odds, odds_table, peaks
from costmodel.machine.framework import footprints
from costmodel.runs.comparison import Compared
from costmodel.runs.table import Run, read_runs
from costmodel.runs.validate import compare
from costmodel.simulation.uncertainty import P90

SLIP = 0.005  # odds that a run ran, or did not, for another reason


@pytest.fixture(scope="module")
def compared() -> list[Compared]:
    """Of the sources that print failures, and of those that print peaks."""
    folder = os.environ.get("MESHWRIGHT_DATA")
    if not folder:
        pytest.skip("MESHWRIGHT_DATA does not name the folder of measurements")
    runs = read_runs(Path(folder) / "runs.csv")
    failed = {run.cell("source") for run in runs if ran_out(run)}
    return list(
        compare(
            run
            for run in runs
            if run.cell("source") in failed or run.measured.get("peak_memory_gib")
        )
    )


def ran_out(run: Run) -> bool:
    return run.measured.get("oom") == "y"


def test_as_many_runs_fit_as_were_said_to(compared: list[Compared]) -> None:
    found = odds(compared)
    sure, never = between(found, 0.95, 1.0), between(found, 0.0, 0.05)
    assert len(found) > 300
    assert fmean(one.ran for one in sure) >= 0.95
    assert fmean(one.ran for one in never) <= 0.05
    # Half a dozen to a dozen of each are no more exact than this.
    unsure = [between(found, 0.05, 0.5), between(found, 0.5, 0.95)]
    for here in unsure:
        said, ran = fmean(one.said for one in here), fmean(one.ran for one in here)
        assert ran == pytest.approx(said, abs=0.2)


def test_what_a_peak_is_made_of_says_more_than_its_size(
    compared: list[Compared],
) -> None:
    """Outcomes are likelier than with any share of what is needed, the same for all."""
    outcomes = [
        (item.priced.price, item.measured["oom"] == "n")
        for item in compared
        if item.verdict is not None and item.priced.price is not None
    ]
    known = [(price.document, price.probability_fits, ran) for price, ran in outcomes]
    ratios = [
        log(one["capacity_bytes"] / one["peak_needed_bytes"]) for one, *_ in known
    ]

    def likelihood(said: Iterable[float]) -> float:
        bounded = (min(max(one, SLIP), 1 - SLIP) for one in said)
        each = zip(bounded, known, strict=True)
        return sum(log(one if ran else 1 - one) for one, (*_, ran) in each)

    alike = [
        likelihood(NormalDist(0, share).cdf(ratio) for ratio in ratios)
        for share in (0.04, 0.05, 0.06, 0.07, 0.08, 0.1, 0.12, 0.15, 0.2)
    ]
    assert likelihood(odds for _, odds, _ in known) > max(alike) + 2


def test_peaks_lie_inside_their_intervals(compared: list[Compared]) -> None:
    """Of frameworks that somebody fitted, taken together."""
    known = {name: one for name, one in peaks(compared).items() if name in footprints()}
    inside = [abs(each) <= P90 for one in known.values() for each in one.residuals]
    assert len(inside) > 150
    assert 0.75 <= fmean(inside) <= 0.9


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
