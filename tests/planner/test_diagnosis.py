"""No layout: the tightest constraint, and a change that really helps."""

from __future__ import annotations

from dataclasses import replace

import pytest

from costmodel.legality import MOST_PASSES
from costmodel.pins import Pins
from planner.diagnosis import diagnose, leanest
from planner.floors import leaf_bounds
from planner.plan import solve
from planner.search import Limits
from planner.searches import SEARCHES
from planner.solution import Status
from planner.space import Space
from planner.table import length
from profiles.units import MiB
from tests.problems import on, problem


def test_memory_names_the_smallest_peak_and_more_gpus() -> None:
    posed = problem("gpt-175b", 8, global_batch=64)
    said = diagnose(posed)
    assert said.constraint.startswith("memory: the smallest peak of any layout is ")
    assert "79.2 GiB" in said.constraint
    assert said.nearest is not None
    gpus = int(said.nearest.split()[0])
    found = solve(replace(posed, gpus=gpus), SEARCHES["branch-and-bound"], Limits())
    assert found.status is Status.OPTIMAL


def test_a_pin_that_costs_too_much_memory_is_the_nearest_change() -> None:
    pins = Pins(tp=1, pp=1, zero=0)
    said = diagnose(problem("gpt-13b", 8, global_batch=64, pins=pins))
    assert said.nearest is not None
    assert said.nearest.startswith("leave --")


def test_nothing_helps_where_a_single_layer_is_too_large() -> None:
    said = diagnose(problem("gpt-tiny", 32, where=on("cpu"), limit_bytes=1 * MiB))
    assert (said.nearest, "nothing near works" in str(said)) == (None, True)


@pytest.mark.parametrize("gpus", [11, 1009])
def test_divisibility_names_a_batch_that_divides(gpus: int) -> None:
    posed = problem(gpus=gpus, global_batch=3)
    said = diagnose(posed)
    assert said.constraint.startswith("divisibility: ")
    assert said.nearest == f"a batch of {gpus} (--global-batch {gpus})"
    raised = replace(posed, job=replace(posed.job, global_batch=gpus))
    assert length(Space(problem=raised).branches)


def test_a_step_too_long_to_simulate_says_so() -> None:
    batch = 2 * MOST_PASSES + 10  # its divisors leave no smaller count of micro-batches
    pins = Pins(micro_batch=1)
    said = diagnose(problem(gpus=1, global_batch=batch, pins=pins))
    assert said.constraint.startswith("size: ")


@pytest.mark.parametrize("gpus", [2, 8])
def test_the_leanest_candidate_holds_the_least(gpus: int) -> None:
    posed = problem("gpt-mini", gpus)
    space = Space(problem=posed)
    peaks = leaf_bounds(posed, space.leaves(space.branches)).peak_memory_bytes
    found = leanest(posed)
    assert found is not None
    assert found.estimate.peak_memory_bytes == pytest.approx(peaks.min(), rel=1e-3)
