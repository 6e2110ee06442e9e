"""The slowest of many ranks: closed forms, and draws."""

from __future__ import annotations

from math import pi, sqrt

import numpy as np
import pytest

from costmodel.training_run.jitter import expected_maximum, jitter, maximum_quantile
from tests.golden.priced import job_of, priced


def test_expected_maxima_are_those_of_the_tables() -> None:
    """Of one, two and three in closed form, of ten by Teichroew (1956)."""
    assert expected_maximum(1) == pytest.approx(0, abs=1e-6)
    assert expected_maximum(2) == pytest.approx(1 / sqrt(pi), rel=1e-5)
    assert expected_maximum(3) == pytest.approx(3 / (2 * sqrt(pi)), rel=1e-5)
    assert expected_maximum(10) == pytest.approx(1.53875, rel=1e-5)


@pytest.mark.parametrize("ranks", [4, 64, 1000])
def test_what_is_drawn_has_that_distribution(ranks: int) -> None:
    drawn = np.random.default_rng(5).normal(size=(4000, ranks)).max(axis=1)
    error = drawn.std() / sqrt(4000)
    assert abs(drawn.mean() - expected_maximum(ranks)) < 4 * error
    below = (drawn < maximum_quantile(ranks, 0.9)).mean()
    assert below == pytest.approx(0.9, abs=0.02)


def test_a_step_waits_for_the_slowest_rank() -> None:
    found = priced(job_of("gpt-1.3b", 64), dp=8)
    one, other = jitter(found, 0.01), jitter(found, 0.02)
    assert other["added"] == pytest.approx(2 * one["added"])
    assert 0.01 < one["added"] < 0.01 * expected_maximum(8)  # of its own work alone
    times = one["step_time_s"]
    assert found.step_time_s < times["p50"] < times["p99"]
    assert times["mean"] == pytest.approx(found.step_time_s * (1 + one["added"]))
