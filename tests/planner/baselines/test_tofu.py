"""Tofu as a search takes the layout that its recursion says, and states it."""

from __future__ import annotations

import numpy as np
import pytest

from costmodel.layout.strategy import Uniform
from costmodel.options.pins import Pins
from planner.api import solve
from planner.baselines.tofu import Tofu, partition
from planner.problem.problem import Problem
from planner.search.search import Limits
from tests.support.problems import on, problem


def chosen(posed: Problem) -> Uniform:
    best = solve(posed, Tofu(), Limits(runners_up=0)).best
    assert best is not None
    return best.choice


@pytest.mark.parametrize(
    ("batch", "passes", "degrees"),
    [
        (1536, 1, {"dp": 64, "cp": 1, "tp": 1}),  # rows outweigh weights
        (8, 1, {"dp": 2, "cp": 2, "tp": 16}),  # weights outweigh rows
    ],
)
def test_each_level_splits_what_sends_least(
    batch: int, passes: int, degrees: dict[str, int]
) -> None:
    assert partition(problem("gpt-13b", 64, global_batch=batch), passes, 64) == degrees


@pytest.mark.parametrize("name", ["gpt-13b", "mixtral-8x7b"])
def test_it_takes_the_fewest_passes_of_the_partition_that_fit(name: str) -> None:
    posed = problem(name, 64, global_batch=256)
    choice = chosen(posed)
    passes = choice.micro_batches(posed.job.global_batch)
    named = {degree: getattr(choice, degree) for degree in ("dp", "cp", "tp")}
    assert named == partition(posed, passes, 64)
    assert (choice.pp, choice.zero, choice.zero_group) == (1, 3, choice.dp)


def test_all_factors_of_the_ranks_are_shared_out() -> None:
    degrees = partition(problem("gpt-13b", 48, global_batch=96), 1, 48)
    assert np.prod([*degrees.values()]) == 48


def test_a_pinned_pipeline_leaves_it_the_ranks_of_a_stage() -> None:
    posed = problem("gpt-13b", 32, global_batch=64, pins=Pins(pp=4), where=on())
    choice = chosen(posed)
    assert choice.pp == 4
    assert choice.tp * choice.cp * choice.dp == 8
