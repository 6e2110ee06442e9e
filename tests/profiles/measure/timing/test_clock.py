"""How communication is timed: in the midst of what a rank computes."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest
import torch

import profiles.measure.timing.clock
from profiles.measure.timing.clock import Clock

CALLS = 4
PAUSE_S = 0.02


class Work:
    """What is to be waited for."""

    def __init__(self, over: Callable[[], object]) -> None:
        self.wait = over


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

    def begin() -> tuple[Work]:
        order.append("work")
        return (Work(lambda: order.append("over")),)

    return order, clock.amid(begin, between, CALLS)


@pytest.mark.parametrize("own", [True, False])
def test_every_call_comes_after_work_that_is_not_counted(own: bool) -> None:
    order, seconds = seen(own=own)
    assert order == ["between", "work", "over"] * CALLS
    assert seconds < PAUSE_S / 2


class Time:
    """Two clocks as a process sees them: its own, and the wall's."""

    def __init__(self) -> None:
        self.own_s = self.wall_s = 0.0

    def process_time(self) -> float:
        return self.own_s

    thread_time = process_time

    def perf_counter(self) -> float:
        return self.wall_s

    def compute(self, seconds: float, others_s: float = 0.0) -> None:
        self.own_s += seconds
        self.wall_s += seconds + others_s

    def wait(self, seconds: float) -> None:
        self.wall_s += seconds


@pytest.fixture
def passing(monkeypatch: pytest.MonkeyPatch) -> Time:
    time_ = Time()
    monkeypatch.setattr(profiles.measure.timing.clock, "time", time_)
    return time_


def in_turns(device: str = "cpu") -> Clock:
    return Clock(Alone(), device, own=True, budget_s=10.0, turns=2.0)


@pytest.mark.parametrize("others_s", [0.0, 1.0, 5.0])
def test_what_ranks_compute_that_take_turns_is_their_cpu_time(
    passing: Time, others_s: float
) -> None:
    """However often another rank had the core meanwhile."""
    found = in_turns().timed(lambda: passing.compute(1.0, others_s))
    assert found == pytest.approx(2.0)


def test_a_message_is_not_charged_for_the_others_turns(passing: Time) -> None:
    """It is waited for while another rank computes what this one just has."""
    message = Work(lambda: passing.wait(1.0 + 0.25))
    found = in_turns().amid(lambda: (message,), lambda: passing.compute(1.0), CALLS)
    assert found == pytest.approx(0.25)


@pytest.mark.parametrize("turns", [1.0, 2.0])
def test_what_is_computed_beside_a_message_is_not_its_own(
    passing: Time, turns: float
) -> None:
    """One that takes 3 s costs 1 s where the other two were put to use."""
    lasts_s = 3.0
    clock = Clock(Alone(), "cpu", own=True, budget_s=10.0, turns=turns)
    found = clock.amid(
        lambda: (Work(lambda: passing.wait(lasts_s - 2.0)),),
        lambda: passing.compute(5.0, 5.0 * (turns - 1)),
        CALLS,
        lambda: passing.compute(2.0, 2.0 * (turns - 1)),
    )
    assert found == pytest.approx(lasts_s - 2.0)


def test_a_gpus_ranks_do_not_take_turns() -> None:
    assert in_turns("cuda").turns == 1.0


class Event:
    """A CUDA event as a clock sees it; *order* says what came when."""

    order: list[str] = []  # noqa: RUF012

    def __init__(self, *, enable_timing: bool) -> None:
        assert enable_timing

    def record(self) -> None:
        self.order.append("event")

    def synchronize(self) -> None:
        self.order.append("synchronize")

    def elapsed_time(self, other: Event) -> float:
        return 3.0 if other is not self else 0.0


def test_a_gpu_waits_until_its_work_is_queued(monkeypatch: pytest.MonkeyPatch) -> None:
    order: list[str] = []
    monkeypatch.setattr(Event, "order", order)
    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: order.append("synchronize"))
    monkeypatch.setattr(torch.cuda, "_sleep", lambda cycles: order.append("sleep"))
    clock = Clock(Alone(), "cuda", own=False, budget_s=10.0)
    assert clock.timed(lambda: order.append("work")) == pytest.approx(3e-3)
    assert order == ["synchronize", "sleep", "event", "work", "event", "synchronize"]
