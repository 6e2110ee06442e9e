"""Holmes (Yang et al., ICPP 2024): pipelines cross slow links, gradients do not."""

from __future__ import annotations

from dataclasses import replace

import pytest

from costmodel.layout.strategy import Uniform, spell_out
from costmodel.machine.assembly import machine
from costmodel.options.pins import Pins
from costmodel.simulation.estimator import estimate
from planner.api import solve
from planner.heterogeneous.homogenized import by_other_schedules
from planner.search.branch_and_bound import BranchAndBound
from planner.search.search import Limits
from profiles.hardware.catalog import cluster
from profiles.hardware.clusters import Cluster
from profiles.models.catalog import model
from profiles.models.job import Job
from tests.support.problems import problem
from tests.support.rows import Obtained
from tests.support.toy import ETHERNET

A100 = cluster("dgx-a100-80gb").island
LIMITS = Limits(runners_up=0)
JOB = Job(
    model="gpt-39.1b", spec=model("gpt-39.1b").spec, seq_len=2048, global_batch=768
)


RDMA = Cluster(name="one", islands=(A100,), source="a test")
TWO = Cluster(
    name="two islands",
    islands=(replace(A100, nodes=4), replace(A100, nodes=4)),
    between=ETHERNET,
    source="a test",
)


def step_time_s(pp: int, where: Cluster) -> float:
    choice = Uniform(
        tp=8,
        pp=pp,
        dp=8 // pp,
        zero=0,
        sequence_parallel=True,
        recompute="full",
        schedule="gpipe",
    )
    layout = spell_out(choice, JOB.graph, JOB.global_batch)
    return estimate(JOB, where, layout, on=machine(where)).step_time_s


@pytest.mark.row(
    "A6",
    "throughput of pipelines across; of data parallelism across",
    expected="at least 90 %; under 60 %",
    evidence="derived: tables of the paper not seen",
)
def test_pipelines_cross_islands_almost_for_free_and_gradients_do_not(
    obtained: Obtained,
) -> None:
    """Two islands of four nodes with Ethernet between: with the pipeline across them
    at least 90 % of what one RDMA fabric gives, with data parallelism less than 60 %
    (systems.md, A6). GPipe's transfers lie behind its passes; 1F1B waits for them every
    second micro-batch and keeps four fifths."""
    assert step_time_s(2, RDMA) / step_time_s(2, TWO) >= 0.9
    obtained(
        "; ".join(
            f"{step_time_s(pp, RDMA) / step_time_s(pp, TWO):.0%}" for pp in (2, 1)
        )
    )
    assert step_time_s(1, RDMA) / step_time_s(1, TWO) < 0.6


@pytest.mark.row(
    "A6",
    "throughput of two RDMA islands over Ethernet, of one fabric",
    misses="by half a point",
    expected="90 %",
    evidence="derived: tables of the paper not seen",
)
def test_what_plan_finds_keeps_nine_tenths_of_one_fabric(obtained: Obtained) -> None:
    """A6's 90 %, of what `plan` finds on one fabric with the same schedule: a V of two
    pipeline ranks, one on each island, and no data parallelism across. By the present
    coefficients it is 89.5 %, which misses that by a hair."""
    one, two = (
        problem(JOB.model, 64, where=machine(where), global_batch=JOB.global_batch)
        for where in (RDMA, TWO)
    )
    found = min(by_other_schedules(two, BranchAndBound(), LIMITS), key=two.value)
    for schedule, share in ((found.choice.schedule, 0.89), (None, 0.885)):
        posed = replace(one, pins=Pins(schedule=schedule))
        alone = solve(posed, BranchAndBound(), LIMITS)
        assert alone.gap == 0
        obtained(f"{alone.value / two.value(found):.1%}")
        assert alone.value / two.value(found) >= share
    for stage in found.estimate.layout.stages:
        (span,) = stage.mesh.ranks.spans
        assert span[0] // 32 == span[1] // 32
