"""PyTorch's AMP recipe: how much faster autocast is predicted to make it."""

from __future__ import annotations

import pytest

from benchmarks.amp_recipe import LAYERS, ROWS, WIDTH, measured, predicted
from costmodel.machine.assembly import Machine, machine
from profiles.hardware.catalog import cluster
from tests.support.rows import Obtained


def on(name: str) -> Machine:
    return machine(cluster(name))


@pytest.mark.row("K2", "speed-up of the recipe", expected="at least 2")
def test_autocast_makes_the_recipe_twice_as_fast_on_an_h200(obtained: Obtained) -> None:
    """The recipe says 2 to 3 times on tensor cores; fp32 is on the plain ones."""
    found = predicted(on("hgx-h200"))
    obtained(f"{found.speed_up:.2f}")
    assert 2 <= found.speed_up < 3
    flops = 3 * LAYERS * 2 * ROWS * WIDTH**2
    assert found.plain_s > flops / 67e12, "no faster than the peak"


def test_beside_tf32_autocast_gains_little() -> None:
    """Products of 19 bits have half the rate of 16, and no weight to cast."""
    where = on("hgx-h200")
    assert 1 < predicted(where, "tf32").speed_up < 1.5


def test_the_same_step_is_timed_where_there_is_a_device() -> None:
    found = measured("cpu", width=16, rows=4)
    assert found.plain_s > 0
    assert found.autocast_s > 0
