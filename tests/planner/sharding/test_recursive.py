"""Tofu's recursion finds on a transformer's parts what the integer program proves."""

from __future__ import annotations

from dataclasses import replace

import pytest

from planner.baselines.tofu import levelled, recursive
from planner.sharding.choice_graph import Status
from planner.sharding.costs import SentBytes
from planner.sharding.elimination import eliminate
from planner.sharding.ilp import solve_choice
from planner.sharding.intra_op import pose
from profiles.errors import InvalidSpec
from profiles.models.graph import Block
from tests.support.blocks import attention, block_of, block_problem, mlp
from tests.support.rows import Obtained

PARTS = {
    "mlp": mlp("gpt-13b"),
    "attention": attention("gpt-13b"),
    "grouped queries": attention("llama3-8b"),
}


@pytest.mark.row(
    "F3",
    "recursive over optimal, MLP and attention, 2, 4, 8 ranks",
    expected="1",
    evidence="computed",
)
@pytest.mark.parametrize("ways", [2, 4, pytest.param(8, marks=pytest.mark.slow)])
@pytest.mark.parametrize("block", PARTS.values(), ids=PARTS)
def test_it_equals_the_integer_program(
    block: Block, ways: int, obtained: Obtained
) -> None:
    problem = block_problem(block, sequences=8)
    found = recursive(problem, ways)
    best = solve_choice(pose(levelled(problem, ways), SentBytes()).graph)
    assert best.status is Status.OPTIMAL
    assert found.status is Status.FEASIBLE
    obtained(f"{found.value / best.value if best.value else 1:g}")
    assert found.value == pytest.approx(best.value)


@pytest.mark.parametrize("name", ["gpt-1.3b", "llama3-8b"])
@pytest.mark.parametrize("ways", [2, 4])
def test_it_is_the_optimum_of_whole_layers_too(name: str, ways: int) -> None:
    problem = block_problem(block_of(name), sequences=8)
    best = eliminate(pose(levelled(problem, ways), SentBytes()).graph)
    assert recursive(problem, ways).value == pytest.approx(best.value)


def test_many_passes_a_step_are_split_by_batch() -> None:
    problem = replace(block_problem(mlp(), sequences=8), micro_batches=64)
    assert set(recursive(problem, 4).loops.values()) == {("batch", "batch")}


@pytest.mark.parametrize("ways", [3, 6, 12])
def test_other_factors_are_taken_too(ways: int) -> None:
    problem = block_problem(mlp(), sequences=24)
    best = eliminate(pose(levelled(problem, ways), SentBytes()).graph)
    found = recursive(problem, ways)
    assert found.value == pytest.approx(best.value)
    assert all("whole" not in loops for loops in found.loops.values())


@pytest.mark.parametrize("ways", [0, 1])
def test_one_rank_shares_nothing(ways: int) -> None:
    with pytest.raises(InvalidSpec, match="give 2 or more"):
        recursive(block_problem(mlp()), ways)
