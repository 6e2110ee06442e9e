"""Goodput: the formula against its first order, the best interval by search, and the
published intervals of Young and Daly."""

from __future__ import annotations

from math import exp, inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from costmodel.training_run.goodput import FailureModel
from profiles.errors import InvalidSpec
from tests.support.rows import Obtained

shares = st.floats(1e-4, 0.3)
replays = st.floats(0.001, 1)


def model(
    checkpoint: float, restart: float = 0.0, replay: float = 1.0, step: float = 0.0
) -> FailureModel:
    return FailureModel(
        mtbf_s=1000.0,
        checkpoint_s=checkpoint * 1000,
        restart_s=restart * 1000,
        replay=replay,
        step_s=step * 1000,
    )


@given(checkpoint=shares, restart=shares, replay=replays, step=st.floats(0, 0.01))
def test_nothing_is_better_than_the_best_interval(
    checkpoint: float, restart: float, replay: float, step: float
) -> None:
    one = model(checkpoint, restart, replay, step)
    best_s = one.best_interval_s
    best = one.goodput(best_s)
    for factor in (0.5, 0.9, 0.99, 1.01, 1.1, 2.0):
        work_s = (best_s - one.checkpoint_s) * factor
        assert one.goodput(work_s + one.checkpoint_s) <= best * (1 + 1e-12)


@given(checkpoint=shares, restart=shares, interval=st.floats(0.01, 1))
def test_from_a_checkpoint_it_is_dalys_expected_time(
    checkpoint: float, restart: float, interval: float
) -> None:
    """M e^(R/M) (e^((w+δ)/M) − 1), whatever the step."""
    one = model(checkpoint, restart, step=0.003)
    work = interval
    expected = exp(restart) * (exp(work + checkpoint) - 1)
    found = one.goodput((work + checkpoint) * 1000)
    assert found == pytest.approx(work / expected)


def test_to_first_order_it_is_swifts_formula() -> None:
    """1 − (T_ckpt/τ + (T_restart + T_replay)/MTBF), of rare failures."""
    for replay in (0.0, 0.3, 1.0):
        one = FailureModel(
            mtbf_s=1e6, checkpoint_s=2, restart_s=40, replay=replay, step_s=4
        )
        replay_s = replay * 100 / 2 + (1 - replay) * 4 / 2
        first = 1 - (2 / 100 + (40 + replay_s) / 1e6)
        assert one.first_order(100) == pytest.approx(first)
        assert one.goodput(100) == pytest.approx(first, abs=1e-5)


@given(checkpoint=shares, restart=shares, interval=st.floats(0.01, 1), low=replays)
def test_less_done_again_is_never_worse(
    checkpoint: float, restart: float, interval: float, low: float
) -> None:
    tau = (interval + checkpoint) * 1000
    rows = [
        model(checkpoint, restart, replay).goodput(tau) for replay in (1.0, low, 0.0)
    ]
    assert rows == sorted(rows)


@pytest.mark.row("A3", "steps lost with a replica", expected="0")
def test_a_replica_loses_no_step(obtained: Obtained) -> None:
    """But the one under way, half of it on average; and needs no checkpoint."""
    one = FailureModel(mtbf_s=1e5, checkpoint_s=0, restart_s=60, replay=0, step_s=20)
    assert one.goodput(1e4) == pytest.approx(1 - (60 + 10) / 1e5, rel=1e-5)
    assert one.best_interval_s == inf
    obtained("0, and half of the one under way")


@pytest.mark.parametrize("share", [0.001, 0.01, 0.1])
def test_young_and_daly_are_near_the_best(share: float) -> None:
    one = model(share)
    best_s = one.best_interval_s
    assert one.daly_interval_s == pytest.approx(best_s, rel=0.003)
    work_s = best_s - one.checkpoint_s
    assert one.young_interval_s == pytest.approx(work_s, rel=share**0.5)
    assert one.goodput(one.young_interval_s) <= one.goodput(one.daly_interval_s)


def test_no_failure_costs_the_checkpoints_alone() -> None:
    one = FailureModel(mtbf_s=inf, checkpoint_s=2, restart_s=40)
    assert one.goodput(100) == pytest.approx(0.98)
    assert one.best_interval_s == one.daly_interval_s == inf
    often = FailureModel(mtbf_s=10, checkpoint_s=3000, restart_s=40_000)
    assert often.goodput(4000) == 0
    assert often.daly_interval_s == 3010
    assert 3000 < often.best_interval_s <= 3010


def test_a_tiny_share_has_its_interval_by_the_series() -> None:
    one = model(0.001, replay=1e-12)
    young = one.young_interval_s / 1e-12**0.5
    assert one.best_interval_s - one.checkpoint_s == pytest.approx(young, rel=1e-3)


@pytest.mark.parametrize(
    "wrong",
    [{"mtbf_s": 0}, {"checkpoint_s": -1}, {"restart_s": inf}, {"replay": 1.5}],
)
def test_what_cannot_be_is_refused(wrong: dict[str, float]) -> None:
    sound = {"mtbf_s": 100.0, "checkpoint_s": 1.0, "restart_s": 1.0}
    with pytest.raises(InvalidSpec):
        FailureModel(**{**sound, **wrong})
