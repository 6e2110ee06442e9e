"""What is offloaded: bytes of a node, their limit, and the bound of columns."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from costmodel.batched.pricing import least_node_bytes
from costmodel.batched.rows import Rows
from costmodel.layout.offload import Offload
from costmodel.layout.strategy import Columns, Uniform, spell_out
from costmodel.options.pins import Pins
from costmodel.simulation.estimator import Estimate, estimate
from costmodel.stages.host_memory import fullest_node_bytes
from costmodel.support.legality import violations
from planner.analysis.infeasibility import diagnose
from planner.api import solve
from planner.problem.problem import Problem
from planner.search.branch_and_bound import BranchAndBound
from planner.search.search import Limits
from profiles.hardware.clusters import Cluster, Figure
from profiles.models.param_count import parameters
from profiles.units import GB
from tests.support.problems import problem

ALL_STATES = Offload(optimizer=True, parameters=True)


def priced(posed: Problem, choice: Uniform) -> Estimate:
    layout = spell_out(choice, posed.job.graph, posed.job.global_batch)
    return estimate(posed.job, posed.machine.cluster, layout, on=posed.machine)


def away_bytes(posed: Problem, choice: Uniform) -> float:
    away = priced(posed, choice).away
    return 0.0 if away is None else away.node_bytes


def with_hosts(posed: Problem, **sizes: float) -> Problem:
    """*posed* on nodes that hold so many bytes: `host_memory`, `nvme`."""
    figures: dict[str, Any] = {
        name: Figure(value=size, unit="B", source="test")
        for name, size in sizes.items()
    }
    cluster = posed.machine.cluster
    islands = (replace(cluster.island, **figures),)
    cluster = replace(cluster, islands=islands)
    return replace(posed, machine=replace(posed.machine, cluster=cluster))


def test_fourteen_bytes_a_parameter_are_away_with_zero_offload() -> None:
    """Ren et al. (ATC 2021), section 4: fp16 gradients, fp32 weights and two moments
    on the host, 14 bytes a parameter; the fp16 weights stay on the device."""
    posed = replace(problem("gpt-13b", 1, global_batch=1), gradient_format="bf16")
    choice = Uniform(
        zero=2, gradient_format="bf16", offload=Offload(optimizer=True), micro_batch=1
    )
    trained = parameters(posed.job.spec).total
    assert away_bytes(posed, choice) / trained == pytest.approx(14.0, rel=1e-6)


def test_a_node_has_the_states_of_all_its_ranks_once() -> None:
    """However ZeRO shards them over one node, its hosts hold all of a model."""
    posed = problem("gpt-1.3b", 8, global_batch=8)
    alone = away_bytes(posed, Uniform(dp=1, zero=3, offload=ALL_STATES))
    shared = Uniform(dp=8, zero=3, zero_group=8, offload=ALL_STATES)
    assert away_bytes(posed, shared) == pytest.approx(alone)
    copies = Uniform(dp=8, zero=3, zero_group=1, offload=ALL_STATES)
    assert away_bytes(posed, copies) == pytest.approx(8 * alone)


def test_activations_are_away_for_each_micro_batch_in_flight() -> None:
    """Yuan et al. (ATC 2024): α · A · in flight; the first stage has p of them."""
    posed = problem("gpt-1.3b", 32, global_batch=16)
    away = Offload(activations=0.5)
    deep = Uniform(tp=8, pp=4, offload=away)
    whole = replace(deep, offload=Offload(activations=1.0))
    saved = priced(posed, replace(deep, offload=Offload())).memory[0].activations
    assert away_bytes(posed, whole) == pytest.approx(2 * away_bytes(posed, deep))
    assert away_bytes(posed, whole) == pytest.approx(8 * float(saved), rel=0.02)


@pytest.mark.parametrize(
    ("each", "sizes", "on_node", "most"),
    [
        ([3.0, 1.0], [16, 16], 8, 24.0),
        ([3.0, 1.0, 2.0], [4, 4, 8], 8, 16.0),
        ([3.0, 1.0], [2, 2], 8, 8.0),
        ([1.0, 5.0, 1.0], [6, 4, 6], 8, 16.0),  # a stage across the nodes' border
    ],
)
def test_nodes_are_filled_in_the_order_of_ranks(
    each: list[float], sizes: list[int], on_node: int, most: float
) -> None:
    assert fullest_node_bytes(np.array(each), sizes, on_node) == pytest.approx(most)


@st.composite
def offloaded(draw: st.DrawFn) -> Uniform:
    zero = draw(st.integers(0, 3))
    dp, virtual = draw(st.sampled_from((1, 2, 4))), draw(st.sampled_from((1, 2)))
    return Uniform(
        tp=draw(st.sampled_from((1, 2, 8))),
        pp=draw(st.sampled_from((1, 2, 4))),
        dp=dp,
        schedule="interleaved"
        if virtual > 1
        else draw(st.sampled_from(("1f1b", "gpipe"))),
        virtual_stages=virtual,
        zero=zero,
        zero_group=dp if zero else 1,
        recompute=draw(st.sampled_from(("none", "cheap-ops", "full"))),
        offload=Offload(
            activations=draw(st.sampled_from((0.0, 0.4, 1.0))),
            optimizer=draw(st.booleans()),
            parameters=zero == 3 and draw(st.booleans()),
        ),
    )


@given(choice=offloaded())
@settings(max_examples=20)
def test_columns_bound_what_the_fullest_node_has(choice: Uniform) -> None:
    posed = problem("gpt-1.3b", choice.gpus, global_batch=32)
    if list(violations(choice, posed.job, posed.machine.cluster)):
        return
    posed = replace(posed, offload=choice.offload)
    least = least_node_bytes(Rows(columns=Columns.of([choice]), book=posed.book))
    assert float(least[0]) <= away_bytes(posed, choice) * (1 + 1e-9)


def test_what_the_hosts_do_not_hold_does_not_fit() -> None:
    posed = with_hosts(problem("gpt-1.3b", 8, global_batch=8), host_memory=10 * GB)
    shared = Uniform(dp=8, zero=3, zero_group=8, offload=ALL_STATES)
    found = priced(posed, shared)
    assert found.away is not None
    assert not found.fits
    assert found.document()["offloaded"]["node_capacity_bytes"] == 10 * GB
    drives = replace(shared, offload=replace(ALL_STATES, tier="nvme"))
    assert priced(posed, drives).fits, "nobody says what drives hold"
    assert not priced(with_hosts(posed, nvme=10 * GB), drives).fits


def test_a_plan_is_refused_by_its_hosts_and_says_what_they_lack() -> None:
    pins = Pins(tp=1, pp=1, cp=1, micro_batch=1)
    asked = problem("gpt-mini", 2, global_batch=2, pins=pins)
    asked = replace(asked, offload=Offload(optimizer=True))
    roomy = solve(asked, BranchAndBound(), Limits(runners_up=0))
    assert roomy.best is not None
    used = roomy.best.estimate.away
    assert used is not None
    small = with_hosts(asked, host_memory=used.node_bytes / 4, nvme=100 * GB)
    found = solve(small, BranchAndBound(), Limits(runners_up=0))
    assert (found.best, found.counters.simulated) == (None, 0)
    said = diagnose(small)
    assert said.constraint.startswith("host memory: ")
    assert "of a node's host memory, which has" in said.constraint
    assert any(one["option"].endswith("--offload-to nvme") for one in said.changes)


@pytest.mark.parametrize("smaller", [0, 1])
def test_each_island_has_hosts_of_its_own(smaller: int) -> None:
    """The node with least room for what is away is named; its size is the limit."""
    posed = problem("gpt-1.3b", 16)
    island = posed.machine.cluster.island
    rooms = [Figure(value=size, unit="GiB", source="a test") for size in (1, 2048)]
    islands = tuple(
        replace(island, nodes=1, host_memory=rooms[place != smaller])
        for place in (0, 1)
    )
    where = Cluster(
        name="joined", islands=islands, between=island.levels[-1], source="a test"
    )
    choice = Uniform(pp=2, dp=8, offload=Offload(optimizer=True))
    layout = spell_out(choice, posed.job.graph, posed.job.global_batch)
    found = estimate(posed.job, where, layout).away
    assert found is not None
    assert found.capacity_bytes == rooms[0].si
    assert not found.fits
    alone = estimate(posed.job, posed.machine.cluster, layout).away
    assert alone is not None
    assert alone.node_bytes >= found.node_bytes > alone.node_bytes / 2
