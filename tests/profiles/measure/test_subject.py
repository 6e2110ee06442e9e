"""Messages that would take too long are left out, on all ranks alike."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from itertools import pairwise

import pytest

from profiles.measure.survey import Exchanged
from profiles.measure.timing import clock as clocks
from profiles.measure.timing.clock import Clock
from profiles.measure.timing.tasks import Exchange
from profiles.units import KiB

LINK_BYTES_PER_S = 1e6


class Alone:
    def barrier(self) -> None:
        pass

    def largest(self, *values: float) -> tuple[float, ...]:
        return values


@dataclass(slots=True)
class Link:
    """A link whose time passes by what it carries, however busy the machine is."""

    now_s: float = 0.0

    def perf_counter(self) -> float:
        return self.now_s

    thread_time = process_time = perf_counter

    def carry(self, size: int) -> tuple[()]:
        self.now_s += size / LINK_BYTES_PER_S
        return ()


@pytest.fixture
def link(monkeypatch: pytest.MonkeyPatch) -> Link:
    one = Link()
    monkeypatch.setattr(clocks, "time", one)
    return one


def messages(link: Link, *sizes: int, longest_s: float) -> list[Exchanged]:
    found: list[Exchanged] = []
    for size in sizes:
        one = Exchange(collective="send", ranks=2, size_bytes=size)
        found.append(
            Exchanged(
                one,
                partial(link.carry, size),
                lambda: None,
                smaller=found[-1] if found else None,
                longest_s=longest_s,
            )
        )
    return found


def test_what_would_take_too_long_is_left_out(link: Link) -> None:
    clock = Clock(Alone(), "cpu", own=True, budget_s=0.0)
    sent = messages(link, KiB, 4 * KiB, 16 * KiB, 64 * KiB, longest_s=0.012)
    for one in sent:
        one.visit(clock)
    assert [one.too_long for one in sent] == [False, False, True, True]
    assert [len(list(one.timings())) for one in sent] == [1, 1, 0, 0]
    assert not any(one.wants(30) for one in sent if one.too_long)


def test_a_fast_link_is_measured_to_the_end(link: Link) -> None:
    clock = Clock(Alone(), "cpu", own=True, budget_s=0.0)
    sent = messages(link, KiB, 4 * KiB, longest_s=60.0)
    for one in sent:
        one.visit(clock)
    assert all(one.timings() for one in sent)
    assert all(few.seen != many.seen for few, many in pairwise(sent))
