"""How communication is timed: in the midst of what a rank computes."""

from __future__ import annotations

import time

import pytest

from profiles.measure.clock import Clock

CALLS = 4
PAUSE_S = 0.02


class Alone:
    def barrier(self) -> None:
        pass

    def largest(self, *values: float) -> tuple[float, ...]:
        return values


def seen(*, own: bool) -> tuple[list[str], float]:
    """The order in which a clock calls, and the seconds that it tells."""
    order: list[str] = []

    def between() -> None:
        order.append("between")
        time.sleep(PAUSE_S)

    clock = Clock(Alone(), "cpu", own=own, budget_s=10.0)
    return order, clock.amid(lambda: order.append("work"), between, CALLS)


@pytest.mark.parametrize("own", [True, False])
def test_every_call_comes_after_work_that_is_not_counted(own: bool) -> None:
    order, seconds = seen(own=own)
    assert order == ["between", "work"] * CALLS
    assert seconds < PAUSE_S / 2
