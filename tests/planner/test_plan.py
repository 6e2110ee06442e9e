"""The public call `planner.plan`."""

from __future__ import annotations

import pytest

from costmodel.machine import machine
from costmodel.pins import Pins
from costmodel.software import software
from planner import plan
from planner.baselines.exhaustive import Exhaustive
from planner.solution import Status
from profiles.catalog import cluster
from profiles.errors import UnknownName
from profiles.job import Job
from profiles.models.catalog import model

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
    on = machine(A100, software("megatron-lm"))
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
