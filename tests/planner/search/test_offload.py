"""Offloading as a dimension: never worse than any way alone, and truly bounded."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from costmodel.layout.offload import Offload
from costmodel.options.pins import Pins
from planner.analysis.infeasibility import diagnose
from planner.api import solve
from planner.baselines.exhaustive import Exhaustive
from planner.problem.problem import Objective, Problem
from planner.problem.solution import EXACT, Status
from planner.problem.space import Space
from planner.problem.table import length
from planner.search.bounds import leaf_bounds
from planner.search.branch_and_bound import BranchAndBound
from planner.search.offload import everything_away, ways
from planner.search.search import Limits
from tests.support.problems import on, problem

Ask = Callable[..., tuple[int, str, str]]
LIMITS = Limits(runners_up=2)


def free(posed: Problem) -> Problem:
    return replace(posed, offloads_to="cpu")


@pytest.mark.row(
    "H8", "placement found, of all", expected="the best", evidence="derived"
)
@settings(max_examples=5, deadline=None)
@given(
    gpus=st.sampled_from([1, 2]),
    where=st.sampled_from(["dgx-a100-80gb", "p3.16xlarge"]),
    pins=st.sampled_from(
        [
            Pins(cp=1, micro_batch=2),
            Pins(cp=1, zero=3, micro_batch=1),
            Pins(cp=1, recompute="full", schedule="1f1b"),
        ]
    ),
    tight=st.sampled_from([None, 0.1, 0.5]),
    ratio=st.sampled_from([0.2, 0.7, 1.0]),
)
def test_no_way_is_better_and_none_goes_below_the_bound(
    gpus: int, where: str, pins: Pins, tight: float | None, ratio: float
) -> None:
    posed = problem(gpus=gpus, where=on(where), global_batch=4, pins=pins)
    if tight is not None:
        space = Space(problem=posed)
        peaks = leaf_bounds(posed, space.leaves(space.branches)).needed_bytes
        limit = float(np.quantile(peaks, tight))
        posed = replace(posed, memory_limit_bytes=limit)
    found = solve(free(posed), BranchAndBound(), LIMITS)
    for way in ways(free(posed)):
        for share in (0.0, ratio):
            away = replace(way.offload, activations=share)
            alone = Exhaustive().solve(replace(way, offload=away), LIMITS)
            assert found.lower <= alone.value * (1 + EXACT)
            if share == 0.0:
                assert found.value <= alone.value * (1 + EXACT)
    if found.status is Status.OPTIMAL:
        assert found.lower == pytest.approx(found.value)


def test_what_fits_only_with_a_share_away_is_found() -> None:
    posed = problem("gpt-1.3b", 1, global_batch=8)
    posed = replace(posed, pins=replace(posed.pins, micro_batch=8, recompute="none"))
    space = Space(problem=posed)
    (peak,) = leaf_bounds(posed, space.leaves(space.branches)).needed_bytes
    tight = replace(posed, memory_limit_bytes=0.8 * float(peak))
    found = solve(free(tight), BranchAndBound(), LIMITS)
    assert found.best is not None
    assert tight.fits(found.best)
    assert 0 < found.best.choice.offload.activations < 1
    assert found.counters.considered == found.counters.pruned + found.counters.simulated


def test_all_that_may_be_away_bounds_what_fits() -> None:
    posed = free(problem("gpt-13b", 1, global_batch=1))
    assert everything_away(posed).offload == Offload(
        activations=1.0, optimizer=True, parameters=True
    )
    on_cpu = free(problem(where=on("cpu")))
    assert not everything_away(on_cpu).offload.anything
    said = diagnose(replace(posed, memory_limit_bytes=1e9))
    assert "offload optimizer,parameters,activations=1" in said.constraint


def test_the_least_memory_has_everything_away() -> None:
    posed = problem("gpt-tiny", 1, objective=Objective.MEMORY, global_batch=2)
    found = solve(free(posed), BranchAndBound(), LIMITS)
    alone = solve(posed, BranchAndBound(), LIMITS)
    assert found.best is not None
    assert found.best.choice.offload.anything
    assert found.value < alone.value
    assert length(Space(problem=posed).branches)


def test_the_command_searches_it_and_simulate_refuses(asking: Ask) -> None:
    argv = ("--model", "gpt-13b", "--gpus", "1", "--global-batch", "16", "--json")
    code, out, _ = asking(*argv, "--offload", "auto")
    found = json.loads(out)
    assert code == 0
    assert "optimizer" in found["layout"]["offload"]
    assert found["bound"]["lower"] <= found["bound"]["value"]
    assert asking(*argv)[0] == 1


def test_simulate_does_not_choose(capsys: pytest.CaptureFixture[str]) -> None:
    from costmodel.cli import simulate

    code = simulate.run(["--model", "gpt-tiny", "--offload", "auto"])
    assert (code, "chosen by plan" in capsys.readouterr().err) == (2, True)
