"""Spare nodes: shares of time against the balance equations and Erlang's formula."""

from __future__ import annotations

from math import factorial

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from costmodel.training_run.goodput import FailureModel
from costmodel.training_run.spares import Pool

JOB = FailureModel(mtbf_s=1e5, checkpoint_s=10, restart_s=100)
pools = st.builds(
    Pool,
    nodes=st.integers(3, 500),
    spares=st.integers(0, 6),
    mtbf_s=st.just(1e6),
    repair_s=st.floats(1, 1e5),
    fewer=st.sampled_from([(), (0.9,), (0.9, 0.5)]),
)


@given(pool=pools)
def test_shares_balance(pool: Pool) -> None:
    """They are the null vector of the generator, solved for on its own."""
    most = pool.most
    generator = np.zeros((most + 1, most + 1))
    for broken in range(most):
        up = pool.at_work(broken) / pool.mtbf_s
        down = (broken + 1) / pool.repair_s
        generator[broken, broken + 1] += up
        generator[broken + 1, broken] += down
    generator -= np.diag(generator.sum(axis=1))
    assert np.array(pool.shares) @ generator == pytest.approx(0, abs=1e-12)
    assert sum(pool.shares) == pytest.approx(1)


def test_without_fewer_it_is_erlangs_loss() -> None:
    pool = Pool(nodes=100, spares=3, mtbf_s=1e6, repair_s=2e4)
    load = 100 * 2e4 / 1e6
    terms = [load**k / factorial(k) for k in range(4)]
    assert pool.shares[-1] == pytest.approx(terms[-1] / sum(terms))


@given(pool=pools)
def test_another_spare_never_hurts(pool: Pool) -> None:
    more = Pool(
        nodes=pool.nodes,
        spares=pool.spares + 1,
        mtbf_s=pool.mtbf_s,
        repair_s=pool.repair_s,
    )
    waits = Pool(
        nodes=pool.nodes,
        spares=pool.spares,
        mtbf_s=pool.mtbf_s,
        repair_s=pool.repair_s,
    )
    assert waits.goodput(JOB, 2000) <= more.goodput(JOB, 2000) * (1 + 1e-12)


def test_a_node_that_is_back_at_once_is_no_loss() -> None:
    pool = Pool(nodes=10, spares=0, mtbf_s=1e6, repair_s=0.0)
    assert pool.running == 1
    assert pool.goodput(JOB, 2000) == JOB.goodput(2000)
