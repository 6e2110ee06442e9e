"""Money, energy and CO2, by the figures published of GPT-3."""

from __future__ import annotations

from dataclasses import replace

import pytest

from costmodel.options import RunOptions
from costmodel.training_run.cost import cost
from costmodel.training_run.document import eval_step_s, training
from tests.golden.priced import job_of, priced


def test_gpt_3_took_1287_mwh_and_552_tonnes() -> None:
    """Patterson et al. (arXiv 2104.10350): 14.8 days of 10,000 V100 that drew 330 W
    on average, a PUE of 1.10, 0.429 kg a kWh."""
    found = priced(job_of("gpt-1.3b", 8))
    drawing = replace(found, device_power_w=330.0)
    whole = cost(drawing, 14.8 * 24 * 10_000, RunOptions())
    assert whole["energy_kwh"] == pytest.approx(1287e3, rel=0.005)
    assert whole["co2_kg"] == pytest.approx(552.1e3, rel=0.005)
    clean = cost(drawing, 1.0, RunOptions(tokens=1.0, pue=1.0, carbon_intensity=50.0))
    assert clean["energy_kwh"] == pytest.approx(0.33)
    assert clean["co2_kg"] == pytest.approx(0.33 * 0.05)


def test_what_is_not_known_is_not_said() -> None:
    found = replace(
        priced(job_of("gpt-1.3b", 8)), device_power_w=None, device_cost=None
    )
    whole = cost(found, 10.0, RunOptions())
    assert whole["dollars"] is whole["energy_kwh"] is whole["co2_kg"] is None


def test_evaluation_is_a_third_of_the_passes() -> None:
    """Without a pipeline, of what is neither recompute nor the step's end."""
    found = priced(job_of("gpt-1.3b", 64), dp=8)
    parts = found.breakdown_s
    assert eval_step_s(found) == pytest.approx(
        (parts["compute"] + parts["tensor_comm"]) / 3
    )
    run = RunOptions(tokens=64 * 2048 * 1000.0, eval_interval=300, eval_iters=10)
    whole = training(found, run)
    assert whole["evaluation"]["evaluations"] == 4  # after 300, 600, 900, at the end
    seconds = 1000 * found.step_time_s + 40 * eval_step_s(found)
    assert whole["days"] * 86400 == pytest.approx(seconds)


def test_a_pipeline_fills_for_an_evaluation_too() -> None:
    """(m + p − 1) micro-batches forward alone: a third of those of a step."""
    found = priced(job_of("gpt-2.7b", 32), pp=8)
    ends = sum(found.breakdown_s[name] for name in ("data_comm", "optimizer"))
    passes_s = found.step_time_s - ends
    assert eval_step_s(found) == pytest.approx(passes_s / 3, rel=1e-9)


def test_stragglers_lengthen_the_run() -> None:
    found = priced(job_of("gpt-1.3b", 64), dp=8)
    plain, late = (
        training(found, RunOptions(tokens=1e9, step_jitter=sigma))
        for sigma in (None, 0.05)
    )
    assert late["days"] / plain["days"] == pytest.approx(1 + late["jitter"]["added"])
