"""Floors ≤ columns ≤ simulation: what prunes never prunes too much."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from costmodel.machine.framework import frameworks
from costmodel.options.pins import Pins
from planner.problem.problem import Problem
from planner.problem.space import Space
from planner.problem.table import length, take
from planner.search.bounds import floor_s, leaf_bounds, rough_s
from tests.support.problems import on, problem, small_problems

SLACK = 1 + 1e-12


@given(posed=small_problems())
@settings(max_examples=25)
def test_no_simulation_goes_below_its_bounds(posed: Problem) -> None:
    space = Space(problem=posed)
    leaves = space.leaves(space.branches)
    bounds = leaf_bounds(posed, leaves)
    rough = np.repeat(rough_s(posed, space.branches), space.branches["leaves"])
    for row in np.random.default_rng(0).permutation(len(leaves))[:12]:
        found = posed.simulate(space.choice(leaves, int(row))).estimate
        assert rough[row] <= found.step_time_s * SLACK
        assert bounds.step_time_s[row] <= found.step_time_s * SLACK
        assert bounds.needed_bytes[row] <= found.peak_needed_bytes * SLACK


@given(
    framework=st.sampled_from(sorted(frameworks())), layers=st.sampled_from((None, 1))
)
@settings(max_examples=10)
def test_a_branch_is_not_slower_than_its_leaves(
    framework: str, layers: int | None
) -> None:
    posed = problem(
        "gpt-13b",
        64,
        global_batch=192,
        where=on("dgx-a100-80gb", framework),
        pins=Pins(recompute_layers=layers),
    )
    space = Space(problem=posed)
    rows = np.random.default_rng(0).permutation(length(space.branches))[:300]
    branches = take(space.branches, rows)
    floors = floor_s(posed, branches)
    assert (floors > 0).all()
    assert (rough_s(posed, branches) <= floors * SLACK).all()
    seconds = leaf_bounds(posed, space.leaves(branches)).step_time_s
    owner = np.repeat(np.arange(len(rows)), branches["leaves"])
    assert (floors[owner] <= seconds * SLACK).all()


@pytest.mark.parametrize("name", ["mixtral-8x7b", "deepseek-v3"])
def test_a_glance_is_near_the_floor(name: str) -> None:
    """Half of all branches are off by no more than the bubble, or it would spare
    little."""
    posed = problem(name, 64, global_batch=1024)
    space = Space(problem=posed)
    rows = np.random.default_rng(0).permutation(length(space.branches))[:2000]
    branches = take(space.branches, rows)
    ratio = rough_s(posed, branches) / floor_s(posed, branches)
    assert ratio.max() <= SLACK
    assert np.median(ratio) > 0.7


def test_floors_are_tight_where_data_parallelism_is_cheap() -> None:
    """Within 5 % of their best leaf for most branches, or they would prune little."""
    posed = problem("gpt-13b", 64, global_batch=1536)
    space = Space(problem=posed)
    rows = np.random.default_rng(0).permutation(length(space.branches))[:500]
    branches = take(space.branches, rows)
    seconds = leaf_bounds(posed, space.leaves(branches)).step_time_s
    best = np.full(len(rows), np.inf)
    np.minimum.at(best, np.repeat(np.arange(len(rows)), branches["leaves"]), seconds)
    assert np.median(floor_s(posed, branches) / best) > 0.95


def test_segments_that_are_pinned_bound_their_simulation() -> None:
    pins = Pins(recompute="sqrt", tp=2, cp=1)
    posed = problem("gpt-mini", 8, pins=pins)
    space = Space(problem=posed)
    floors = floor_s(posed, space.branches)
    leaves = space.leaves(space.branches)
    bounds = leaf_bounds(posed, leaves)
    owner = np.repeat(np.arange(len(floors)), space.branches["leaves"])
    assert (floors[owner] <= bounds.step_time_s * SLACK).all()
    for row in range(0, len(leaves), 7):
        found = posed.simulate(space.choice(leaves, row)).estimate
        assert bounds.step_time_s[row] <= found.step_time_s * SLACK
        assert bounds.needed_bytes[row] <= found.peak_needed_bytes * SLACK


@pytest.mark.parametrize(("name", "gpus"), [("gpt-mini", 8), ("deepseek-v3", 2048)])
def test_operators_that_are_pinned_by_name_bound_their_simulation(
    name: str, gpus: int
) -> None:
    """Of several kinds of layers each makes again what it has."""
    again = "activation,mlp_norm" + ("" if name == "gpt-mini" else ",router")
    posed = problem(name, gpus, global_batch=2 * gpus, pins=Pins(recompute=again))
    space = Space(problem=posed)
    rows = np.random.default_rng(0).permutation(length(space.branches))[:60]
    branches = take(space.branches, rows)
    floors, leaves = floor_s(posed, branches), space.leaves(branches)
    bounds = leaf_bounds(posed, leaves)
    owner = np.repeat(np.arange(len(floors)), branches["leaves"])
    assert (floors[owner] <= bounds.step_time_s * SLACK).all()
    plain = leaf_bounds(posed, replace(leaves, recompute=0 * leaves.recompute))
    assert (bounds.step_time_s > plain.step_time_s).any()
    assert (bounds.needed_bytes < plain.needed_bytes).any()
    for row in range(0, len(leaves), len(leaves) // 8):
        choice = space.choice(leaves, row)
        assert choice.recompute == again
        found = posed.simulate(choice).estimate
        assert bounds.step_time_s[row] <= found.step_time_s * SLACK
        assert bounds.needed_bytes[row] <= found.peak_needed_bytes * SLACK


@pytest.mark.parametrize("layers", [1, 2, 40])
def test_recomputing_some_layers_is_between_none_and_all(layers: int) -> None:
    pins = Pins(recompute_layers=layers, recompute="full", pp=2, tp=2, dp=2, cp=1)
    posed = problem("gpt-mini", 8, pins=pins)
    space = Space(problem=posed)
    leaves = space.leaves(space.branches)
    bounds = leaf_bounds(posed, leaves)
    every = leaf_bounds(
        replace(posed, pins=replace(pins, recompute_layers=None)), leaves
    )
    assert (bounds.step_time_s < every.step_time_s).all()
    for row in range(0, len(leaves), 5):
        found = posed.simulate(space.choice(leaves, row)).estimate
        assert bounds.step_time_s[row] <= found.step_time_s * SLACK
        assert bounds.needed_bytes[row] <= found.peak_needed_bytes * SLACK
