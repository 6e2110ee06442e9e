"""Formulas against runs that are drawn, failure by failure."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from costmodel.training_run.goodput import FailureModel
from costmodel.training_run.monte_carlo import drawn
from costmodel.training_run.spares import Pool
from profiles.errors import InvalidSpec

NODE_S = 1e6
SIGMAS = 4.5  # of 50 comparisons none is beyond, but for one set of them in 3,000
shares = st.floats(-4, -1).map(lambda x: 10**x)


@st.composite
def jobs(draw: st.DrawFn) -> tuple[FailureModel, float]:
    """A job on ten nodes, and seconds between its checkpoints: whole steps."""
    mtbf_s = NODE_S / 10
    job = FailureModel(
        mtbf_s=mtbf_s,
        checkpoint_s=mtbf_s * draw(shares),
        restart_s=mtbf_s * draw(shares),
        replay=draw(st.sampled_from([0.0, 0.3, 1.0])),
        step_s=mtbf_s * draw(shares) / 10,
    )
    work_s = max(mtbf_s * draw(st.floats(0.01, 1)), job.checkpoint_s)
    return job, max(1, work_s // job.step_s) * job.step_s + job.checkpoint_s


def pools(*fewer: float, soonest: float = -4.0) -> st.SearchStrategy[Pool]:
    return st.builds(
        Pool,
        nodes=st.just(10),
        spares=st.integers(0, 2),
        mtbf_s=st.just(NODE_S),
        repair_s=st.floats(soonest, -1).map(lambda x: NODE_S * 10**x),
        fewer=st.just(fewer),
    )


def off(job: FailureModel, pool: Pool, interval_s: float) -> tuple[float, float]:
    """Drawn less expected goodput, and the standard error of what was drawn."""
    found = drawn(job, pool, interval_s, 20 * job.mtbf_s, 400)
    low, high = found.interval
    error = (high - low) / 2 / 1.96
    return found.goodput - pool.goodput(job, interval_s), error


@settings(max_examples=50, deadline=None)
@given(asked=jobs(), pool=pools())
def test_the_formula_is_inside_the_interval_of_what_is_drawn(
    asked: tuple[FailureModel, float], pool: Pool
) -> None:
    """With spares that may run out, and a job that waits then: exact, so the difference
    is chance alone."""
    difference, error = off(asked[0], pool, asked[1])
    assert abs(difference) <= SIGMAS * error


@settings(max_examples=20, deadline=None)
@given(asked=jobs(), pool=pools(0.85, 0.7, soonest=-1.5))
def test_of_fewer_nodes_the_formula_is_right_to_first_order(
    asked: tuple[FailureModel, float], pool: Pool
) -> None:
    """Repairs that take longer than restarts; each return to all nodes is one."""
    difference, error = off(asked[0], pool, asked[1])
    assert abs(difference) <= SIGMAS * error + 0.01


def test_returns_to_all_nodes_are_restarts() -> None:
    """Repairs of a tenth of a restart's rarity: 4 % of the time is restarts of them."""
    job = FailureModel(mtbf_s=1e5, checkpoint_s=10, restart_s=6000)
    pool = Pool(nodes=10, spares=0, mtbf_s=1e6, repair_s=4e4, fewer=(0.9, 0.8, 0.7))
    difference, error = off(job, pool, 2000)
    assert abs(difference) <= SIGMAS * error + 0.005


def test_a_run_is_drawn_alike_each_time() -> None:
    job = FailureModel(mtbf_s=1e4, checkpoint_s=10, restart_s=100)
    pool = Pool(nodes=10, spares=0, mtbf_s=1e5, repair_s=0.0)
    one, other = (drawn(job, pool, 400, 1e5, 50) for _ in range(2))
    assert np.array_equal(one.wall_s, other.wall_s)
    assert one.work_s == pytest.approx(1e5, abs=400)
    assert (one.wall_s >= one.work_s).all()
    days = one.days_of(2e5)
    assert days["p10"] <= days["p50"] <= days["p90"]
    assert days["p50"] == pytest.approx(2e5 / one.goodput / 86400, rel=0.02)


def test_failures_are_as_many_as_expected() -> None:
    job = FailureModel(mtbf_s=1e4, checkpoint_s=10, restart_s=100)
    pool = Pool(nodes=10, spares=0, mtbf_s=1e5, repair_s=0.0)
    found = drawn(job, pool, 400, 1e6, 200)
    assert found.failures.mean() == pytest.approx(found.wall_s.mean() / 1e4, rel=0.03)


def test_too_many_failures_to_draw_are_refused() -> None:
    job = FailureModel(mtbf_s=10, checkpoint_s=1, restart_s=1)
    pool = Pool(nodes=10, spares=0, mtbf_s=100, repair_s=0.0)
    with pytest.raises(InvalidSpec, match="--monte-carlo"):
        drawn(job, pool, 5, 1e7, 10)
    with pytest.raises(InvalidSpec, match="--monte-carlo"):
        drawn(job, pool, 50_000, 1e7, 10)
    rare = FailureModel(mtbf_s=1e3, checkpoint_s=1, restart_s=1)
    with pytest.raises(InvalidSpec, match=r"choose 5,.* runs at most"):
        drawn(rare, Pool(nodes=1, spares=0, mtbf_s=1e3, repair_s=0.0), 50, 8e6, 99_999)
