"""How much runs weigh in the fit."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from benchmarks.fit_runs import ROUNDED, SCATTER, SHARED, row_weights
from benchmarks.run_times import Timed


def run(source: str, *, rounded: bool = False) -> Timed:
    stand_in: Any = SimpleNamespace(of=lambda _: source, rounded=rounded)
    return cast(Timed, stand_in)


def test_runs_of_a_source_share_their_weight() -> None:
    runs = [run("one")] + [run("many")] * 100
    found = row_weights(runs, np.zeros(len(runs)))
    assert found[0] == 1.0
    assert found[1:].sum() == pytest.approx(100 ** (1 - SHARED))


def test_a_source_that_is_explained_badly_weighs_less_and_a_good_one_no_more() -> None:
    runs = [run("good")] * 50 + [run("bad")] * 50
    misses = np.array([0.0] * 50 + [0.3, -0.3] * 25)
    found = row_weights(runs, misses)
    assert found[0] == pytest.approx(50**-SHARED)
    assert found[50] < 0.1 * found[0]


def test_one_odd_run_is_not_a_bad_source() -> None:
    found = row_weights([run("single")], np.array([2 * SCATTER]))
    assert found[0] > 0.4


def test_rounded_figures_weigh_less() -> None:
    runs = [run("exact"), run("rounded", rounded=True)]
    found = row_weights(runs, np.zeros(2))
    assert found[1] == ROUNDED * found[0]
