"""Intervals: as wide as residuals say, wider where fewer runs were measured."""

from __future__ import annotations

from dataclasses import replace
from math import exp, log
from typing import Any

import numpy as np
import pytest

from benchmarks.fit_uncertainty import Residuals
from costmodel.layout.strategy import Uniform, spell_out
from costmodel.machine.assembly import machine
from costmodel.machine.framework import load_framework
from costmodel.runs.comparison import left_out
from costmodel.simulation.estimator import estimate
from costmodel.simulation.uncertainty import (
    Calibration,
    Seen,
    Setting,
    Spread,
    calibration,
    probability_fits,
    spread_of,
    with_odds,
)
from profiles.hardware.catalog import cluster
from profiles.models.catalog import model
from profiles.models.job import Job
from tests.support.published_runs import compared_runs, needs_data

JOB = Job(model="gpt-1.3b", spec=model("gpt-1.3b").spec, seq_len=2048, global_batch=8)
CHOICE = Uniform(micro_batch=1, zero=0)
COUNTS = {"often": 19, "once": 1}
SEEN = Calibration(
    step=0.08,
    framework=1.0,
    device=0.5,
    operator=0.6,
    precision=0.3,
    scale=0.1,
    exchange=0.4,
    seen=Seen(
        frameworks=COUNTS,
        devices=COUNTS,
        operators={**COUNTS, "always": 99},
        precisions=COUNTS,
        most_gpus=1024,
    ),
    rows=100,
    inside=0.8,
    inside_family=0.8,
    half_over_error=1.5,
)
USUAL = Setting(
    framework="often",
    device="often",
    operators=frozenset({"often", "always"}),
    precision="often",
    gpus=8,
)


def half(exchanged: float = 0.0, **unlike: Any) -> float:
    return SEEN.half_width(replace(USUAL, **unlike), exchanged=exchanged)


def test_what_was_seen_often_is_surest() -> None:
    assert half() == pytest.approx(0.08 * exp(0.05 * (1.0 + 0.5 + 0.6 + 0.3)))
    assert half(exchanged=0.5) == pytest.approx(half() * exp(0.2))


@pytest.mark.parametrize("name", ["framework", "device", "precision"])
def test_what_is_rare_is_less_certain(name: str) -> None:
    assert half() < half(0.0, **{name: "once"}) < half(0.0, **{name: "never"})


def test_the_rarest_operator_counts() -> None:
    rare, unknown = ({"often", "always", one} for one in ("once", "never"))
    assert half() < half(operators=rare) < half(operators=unknown)
    assert half(operators={"always"}) < half()


def test_each_doubling_beyond_what_was_seen_widens() -> None:
    assert half(gpus=1024) == half()
    assert half(gpus=4096) == pytest.approx(half() * exp(0.2))


def test_interval_is_even_in_ratios() -> None:
    low, high = Spread(step_sigma=0.1).step_time
    assert low * high == pytest.approx(1)
    assert high == pytest.approx(2.718281828 ** (0.1 * 1.2815516))


def test_odds_of_fitting() -> None:
    assert probability_fits(70.0, 5.0, 70.0) == pytest.approx(0.5)
    assert probability_fits(70.0, 5.0, 80.0) > 0.95
    assert probability_fits(70.0, 5.0, 60.0) < 0.05
    assert (probability_fits(7.0, 0.0, 8.0), probability_fits(8.0, 0.0, 7.0)) == (1, 0)


@pytest.mark.parametrize("probability", [0.5, 0.8, 0.95, 0.999])
def test_what_is_left_free_makes_it_fit_as_surely(probability: float) -> None:
    """A device of just what is secured has those odds; the estimate stays."""
    plain = machine(cluster("dgx-a100-80gb"))
    found, sure = (
        estimate(JOB, plain.cluster, spell_out(CHOICE, JOB.graph, 8), on=on)
        for on in (plain, with_odds(plain, probability))
    )
    assert found.peak_secured_bytes == found.peak_needed_bytes == sure.peak_needed_bytes
    (rank,) = sure.memory
    secured, needed = float(rank.secured), float(rank.needed)
    odds = probability_fits(needed, float(rank.spread), secured)
    assert odds == pytest.approx(probability)


def test_states_are_exact_and_what_comes_and_goes_is_not() -> None:
    """As large a peak of states is surer than one of activations."""
    plain = machine(cluster("dgx-a100-80gb"))

    def spread(micro_batch: int) -> float:
        choice = replace(CHOICE, micro_batch=micro_batch)
        layout = spell_out(choice, JOB.graph, JOB.global_batch)
        (rank,) = estimate(JOB, plain.cluster, layout, on=plain).memory
        assert float(rank.spread) < 0.25 * float(rank.needed)
        return float(rank.spread) / float(rank.needed)

    assert spread(1) < spread(2) < spread(8)


def test_known_hardware_is_surer_than_unknown() -> None:
    layout = spell_out(CHOICE, JOB.graph, JOB.global_batch)

    def sigma(where: str, framework: str) -> float:
        on = machine(cluster(where), load_framework(framework))
        return spread_of(on, Setting.of(JOB, layout, on)).step_sigma

    assert sigma("dgx-a100-80gb", "megatron-deepspeed") < sigma(
        "mi300x-8x", "meshwright"
    )


@needs_data
def test_runs_of_a_source_left_out_lie_inside_as_often_as_they_should() -> None:
    """75 to 85 % in p10-p90 that knows of no run of the source: neither in the
    coefficients nor in what was seen. The median half-width is no more than 1.8 times
    the median error."""
    runs = [item for item in compared_runs() if item.left_out]
    assert len(runs) > 0.9 * len(left_out())
    found, left = calibration(), Residuals.of(runs, "source")
    values = np.array([log(found.step), *found.far, found.exchange])
    halves = np.exp(left.design @ values)
    assert 0.75 <= np.mean(left.sizes <= halves) <= 0.85
    assert np.median(halves) <= 1.8 * np.median(left.sizes)


def test_installed_calibration_says_how_it_came_out() -> None:
    found = calibration()
    assert 0.75 <= found.inside <= 0.85
    assert found.inside_family > found.inside
    assert found.half_over_error <= 1.8
