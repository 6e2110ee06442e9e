"""`costmodel.goodput` against the best interval by search, and runs that are drawn."""

from __future__ import annotations

from math import exp, inf
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from costmodel.goodput import FailureModel
from profiles.errors import InvalidSpec

seconds = st.floats(0.1, 100)


@given(checkpoint=seconds, restart=seconds, mtbf=st.floats(1e3, 1e6))
def test_nothing_is_better_than_youngs_interval(
    checkpoint: float, restart: float, mtbf: float
) -> None:
    one = FailureModel(mtbf_s=mtbf, checkpoint_s=checkpoint, restart_s=restart)
    best = one.goodput(one.young_interval_s)
    for factor in (0.5, 0.9, 1.1, 2.0):
        assert one.goodput(one.young_interval_s * factor) <= best


@given(checkpoint=seconds, restart=seconds, mtbf=st.floats(100, 1e6), tau=seconds)
def test_a_replica_saves_what_a_checkpoint_has_done_again(
    checkpoint: float, restart: float, mtbf: float, tau: float
) -> None:
    one, other = (
        FailureModel(
            mtbf_s=mtbf, checkpoint_s=checkpoint, restart_s=restart, recovery=recovery
        )
        for recovery in ("checkpoint", "replica")
    )
    assert one.goodput(tau) <= other.goodput(tau)
    assert other.young_interval_s == other.daly_interval_s == inf


@pytest.mark.parametrize("share", [0.001, 0.01, 0.1])
def test_dalys_interval_is_the_best_of_the_whole_expression(share: float) -> None:
    """Expected time of a unit of work: M e^(R/M) (e^((w+δ)/M) − 1) / w."""
    mtbf = 1000.0
    one = FailureModel(mtbf_s=mtbf, checkpoint_s=share * mtbf, restart_s=0)

    def expected(interval: float) -> float:
        work = interval - one.checkpoint_s
        return mtbf * (exp(interval / mtbf) - 1) / work

    best = min(
        (one.checkpoint_s + mtbf * number / 10_000 for number in range(1, 20_000)),
        key=expected,
    )
    assert one.daly_interval_s == pytest.approx(best, rel=0.02)
    assert expected(one.daly_interval_s) <= expected(one.young_interval_s)


def test_runs_that_are_drawn_have_the_goodput_that_is_said() -> None:
    """Failures at random on the wall, a checkpoint every 100 s of 2 s."""
    one = FailureModel(mtbf_s=5000, checkpoint_s=2, restart_s=40)
    draw = Random(7)
    wall, saved, fails = 0.0, 0.0, draw.expovariate(1 / 5000)
    while wall < 5e6:
        if wall + 100 <= fails:
            wall, saved = wall + 100, saved + 98
        else:
            wall = fails + 40
            fails = wall + draw.expovariate(1 / 5000)
    assert saved / wall == pytest.approx(one.goodput(100), abs=0.003)


def test_no_failure_costs_the_checkpoints_alone() -> None:
    one = FailureModel(mtbf_s=inf, checkpoint_s=2, restart_s=40)
    assert one.goodput(100) == pytest.approx(0.98)
    assert one.daly_interval_s == inf
    often = FailureModel(mtbf_s=10, checkpoint_s=30, restart_s=40)
    assert often.goodput(40) == 0
    assert often.daly_interval_s == 40


@pytest.mark.parametrize(
    "wrong",
    [{"mtbf_s": 0}, {"checkpoint_s": -1}, {"restart_s": inf}, {"recovery": "prayer"}],
)
def test_what_cannot_be_is_refused(wrong: dict[str, float | str]) -> None:
    sound = {"mtbf_s": 100.0, "checkpoint_s": 1.0, "restart_s": 1.0}
    with pytest.raises(InvalidSpec):
        FailureModel(**{**sound, **wrong})  # type: ignore[arg-type]
