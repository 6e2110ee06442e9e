"""The public call `planner.api`."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from costmodel.machine.assembly import machine
from costmodel.machine.framework import load_framework
from costmodel.options.pins import Pins
from planner import plan
from planner.baselines.exhaustive import Exhaustive
from planner.cli import plan as command
from planner.problem.solution import Solution, Status
from profiles.errors import UnknownName
from profiles.hardware.catalog import cluster
from profiles.models.catalog import model
from profiles.models.job import Job

A100 = cluster("dgx-a100-80gb")


def tiny(global_batch: int = 8) -> Job:
    spec = model("gpt-tiny").spec
    return Job(model="gpt-tiny", spec=spec, seq_len=256, global_batch=global_batch)


def test_a_job_and_a_cluster_are_enough() -> None:
    found = plan(tiny(), A100, gpus=2)
    assert found.status is Status.OPTIMAL
    assert found.best is not None
    assert found.best.choice.gpus == 2
    assert found.best.estimate.step_time_s == found.value
    assert found.gap == 0


def test_the_search_can_be_named_or_given() -> None:
    pins = Pins(zero=1, recompute="none", cp=1, tp=1)
    named = plan(tiny(), A100, gpus=2, pins=pins, search="exhaustive")
    given = plan(tiny(), A100, gpus=2, pins=pins, search=Exhaustive())
    assert named.value == given.value
    assert named.search == given.search == "exhaustive"
    with pytest.raises(UnknownName, match="branch-and-bound"):
        plan(tiny(), A100, gpus=2, search="branch-and-bounds")


def test_a_memory_limit_and_a_framework_are_kept() -> None:
    on = machine(A100, load_framework("megatron-lm"))
    free = plan(tiny(512), A100, gpus=2, on=on)
    assert free.best is not None
    limit = free.best.estimate.peak_needed_bytes * 0.9
    held = plan(tiny(512), A100, gpus=2, on=on, memory_limit_bytes=limit)
    assert held.best is not None
    assert held.best.estimate.peak_needed_bytes <= limit
    assert held.value > free.value


def test_an_infeasible_problem_is_a_solution_that_says_so() -> None:
    found = plan(tiny(), A100, gpus=2, memory_limit_bytes=1.0)
    assert (found.status, found.best, found.gap) == (Status.INFEASIBLE, None, 1.0)


def test_a_longer_search_for_more_runners_up_finds_the_same_best() -> None:
    few, many = (plan(tiny(), A100, gpus=4, runners_up=count) for count in (1, 8))
    assert few.value == many.value
    assert len(few.runners_up) == 1
    assert len(many.runners_up) == 8
    assert few.runners_up[0].choice == many.runners_up[0].choice


TIGHT = cluster("dgx-a100-40gb")


def medium() -> Job:
    found = model("gpt-13b")
    return Job(model="gpt-13b", spec=found.spec, seq_len=2048, global_batch=64)


@pytest.fixture(scope="module")
def found() -> Solution:
    """Being as sure as that costs more than 3 % of the speed there."""
    return plan(medium(), TIGHT, gpus=8, probability=0.999, runners_up=0)


def test_the_fastest_that_fits_by_estimate_alone_is_named(found: Solution) -> None:
    capacity = TIGHT.island.device.capacity_bytes
    other = found.by_estimate
    assert found.best is not None
    assert other is not None
    assert other is found.try_first
    assert other.estimate.peak_needed_bytes <= capacity
    assert 0.5 <= other.estimate.probability_fits < 0.999
    assert found.best.estimate.probability_fits >= 0.999
    assert other.estimate.step_time_s < 0.97 * found.value
    loose = plan(medium(), TIGHT, gpus=8, memory_limit_bytes=capacity, runners_up=0)
    assert loose.added is not None
    assert other.estimate.step_time_s == loose.added.uniform_value
    assert loose.by_estimate is None


def test_who_asks_for_even_odds_has_no_other_layout_to_try() -> None:
    assert plan(medium(), TIGHT, gpus=8, probability=0.5).by_estimate is None
    memory = plan(medium(), TIGHT, gpus=8, objective="memory", runners_up=0)
    assert memory.by_estimate is None


def test_what_is_hardly_faster_is_not_tried_first(found: Solution) -> None:
    assert found.best is not None
    assert found.by_estimate is not None
    near = replace(found.by_estimate.estimate, step_time_s=0.975 * found.value)
    other = replace(found.by_estimate, estimate=near)
    assert replace(found, by_estimate=other).try_first is None


def test_the_faster_layout_is_said_with_its_odds(
    capsys: pytest.CaptureFixture[str],
) -> None:
    argv = ["--model", "gpt-13b", "--gpus", "8", "--cluster", "dgx-a100-40gb"]
    argv += ["--probability", "0.999"]
    assert command.run([*argv, "--global-batch", "64", "--top", "0", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    other = found["try_first"]
    odds = other["probability_fits"]
    assert other == found["bound"]["by_estimate"]
    assert other["faster"] > 0.03
    assert (
        other["probability_fits"] == other["estimate"]["interval"]["probability_fits"]
    )
    assert found["bound"]["probability"] == 0.999
    more = ("--top", "0", "--details")
    assert command.run([*argv, "--global-batch", "64", *more]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert f"{other['faster']:.1%} faster, if " in said
    assert f"(probability {odds:.0%})" in said
    assert " and fits with probability 0.999; by estimate alone " in said
