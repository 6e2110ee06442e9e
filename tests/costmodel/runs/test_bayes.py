"""The update: what rows say against a prior, and which are not believed."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from costmodel.runs.bayes import ABSURD, Posterior, updated

NOISE = 0.05
PRIOR = np.diag([0.1**2, 0.2**2])
SLOPES = np.array([[0.8, 0.2], [0.3, 0.7], [0.6, 0.4], [0.1, 0.9], [0.5, 0.5]])
sizes = st.integers(1, len(SLOPES))


def told(misses: list[float]) -> Posterior:
    return updated(PRIOR, SLOPES[: len(misses)], np.array(misses), NOISE)


@given(sizes)
def test_rows_as_foretold_move_nothing_and_narrow(rows: int) -> None:
    found = told([0.0] * rows)
    np.testing.assert_allclose(found.mean, 0.0, atol=1e-12)
    assert np.all(np.linalg.eigvalsh(PRIOR - found.covariance) > -1e-12)
    assert np.trace(found.covariance) < np.trace(PRIOR)
    assert found.noise < NOISE


@given(st.floats(-0.15, 0.15), st.integers(0, len(SLOPES) - 1))
def test_what_a_row_says_moves_its_like_part_of_the_way(miss: float, row: int) -> None:
    found = updated(PRIOR, SLOPES[row : row + 1], np.array([miss]), NOISE)
    end = float(SLOPES[row] @ found.mean)
    assert abs(end) <= abs(miss) + 1e-12
    assert end * miss >= 0


def test_more_rows_that_agree_move_it_farther() -> None:
    ends = [float(SLOPES[0] @ told([0.1] * rows).mean) for rows in (1, 3, 5)]
    assert ends[0] < ends[1] < ends[2] <= 0.1


@given(st.floats(1.0, 3.0))
def test_an_absurd_row_is_dropped_and_the_others_are_not(miss: float) -> None:
    found = told([0.02, 0.01, 0.02, miss, 0.0])
    assert found.weights[3] == 0
    assert np.all(np.delete(found.weights, 3) > 0)
    without = updated(
        PRIOR, np.delete(SLOPES, 3, 0), np.array([0.02, 0.01, 0.02, 0.0]), NOISE
    )
    np.testing.assert_allclose(found.mean, without.mean)


def test_one_row_far_beyond_the_prior_is_not_believed_but_two_are() -> None:
    spread = float(np.sqrt(SLOPES[0] @ PRIOR @ SLOPES[0] + NOISE**2))
    far = 1.2 * ABSURD * spread
    assert updated(PRIOR, SLOPES[:1], np.array([far]), NOISE).weights[0] == 0
    same = np.repeat(SLOPES[:1], 2, axis=0)
    assert np.all(updated(PRIOR, same, np.array([far, far]), NOISE).weights > 0)


def test_rows_that_contradict_each_other_widen() -> None:
    same = np.repeat(SLOPES[:1], 4, axis=0)
    agreed = updated(PRIOR, same, np.array([0.05, 0.05, 0.05, 0.05]), NOISE)
    apart = updated(PRIOR, same, np.array([-0.2, 0.3, -0.15, 0.25]), NOISE)
    assert apart.noise > NOISE > agreed.noise

    def wide(found: Posterior) -> float:
        return float(same[0] @ found.covariance @ same[0]) + found.noise**2

    assert wide(apart) > wide(agreed)


@pytest.mark.parametrize("rows", [1, 3, 10, 40])
def test_intervals_hold_as_many_as_they_say(rows: int) -> None:
    """Truth drawn from the prior; 80 % intervals of another row hold 75 to 87 %."""
    chance = np.random.default_rng(rows)
    spreads = np.full(6, 0.12)
    prior, inside = np.diag(spreads**2), []
    for _ in range(600):
        truth = chance.normal(0, spreads)
        slopes = chance.dirichlet(np.ones(6), rows + 1)
        misses = slopes @ truth + chance.normal(0, NOISE, rows + 1)
        found = updated(prior, slopes[:rows], misses[:rows], NOISE)
        asked = slopes[rows]
        deviation = np.sqrt(asked @ found.covariance @ asked + found.noise**2)
        inside.append(abs(misses[rows] - asked @ found.mean) < 1.2816 * deviation)
    assert 0.75 <= np.mean(inside) <= 0.87
