"""The steps that an H100 of ours measured."""

from __future__ import annotations

from statistics import fmean

import pytest

from benchmarks.gpu_steps import Step, steps


@pytest.fixture(scope="module")
def found() -> list[Step]:
    return list(steps())


def test_steps_are_predicted_within_6_percent_on_average(found: list[Step]) -> None:
    assert len(found) == 4
    assert fmean(abs(one.error) for one in found) < 0.06
    assert max(abs(one.error) for one in found) < 0.12


def test_peaks_are_predicted_within_half_a_percent(found: list[Step]) -> None:
    assert max(abs(one.memory_error) for one in found) < 0.005
