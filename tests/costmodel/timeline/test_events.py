"""Simulated time, and resources that serve one thing at a time."""

from __future__ import annotations

import pytest

from profiles.errors import InvalidSpec
from tests.oracles.event_sim import Clock, Resource


def test_ties_are_broken_by_arrival() -> None:
    clock, log = Clock(), list[str]()
    for name in "cab":
        clock.after(1.0, lambda name=name: log.append(name))  # type: ignore[misc]
    clock.after(0.5, lambda: log.append("first"))
    clock.run()
    assert log == ["first", "c", "a", "b"]


def test_what_is_done_may_ask_for_more() -> None:
    clock, times = Clock(), list[float]()

    def again() -> None:
        times.append(clock.now_s)
        if len(times) < 3:
            clock.after(2.0, again)

    clock.after(1.0, again)
    clock.run()
    assert times == [1.0, 3.0, 5.0]


@pytest.mark.parametrize("delay_s", [-1.0, float("nan")])
def test_time_runs_forward(delay_s: float) -> None:
    with pytest.raises(InvalidSpec, match="only runs forward"):
        Clock().after(delay_s, lambda: None)


def test_a_resource_serves_in_order_and_idles_between() -> None:
    clock, log = Clock(), list[tuple[str, float]]()
    link = Resource(clock, "link")
    link.serve("a", 2.0, lambda: log.append(("a", clock.now_s)))
    link.serve("b", 1.0, lambda: log.append(("b", clock.now_s)))
    clock.after(5.0, lambda: link.serve("c", 1.0))
    clock.run()
    assert log == [("a", 2.0), ("b", 3.0)]
    assert [(span.label, span.start_s, span.end_s) for span in link.spans] == [
        ("a", 0.0, 2.0),
        ("b", 2.0, 3.0),
        ("c", 5.0, 6.0),
    ]


def test_resources_do_not_hinder_each_other() -> None:
    clock = Clock()
    one, other = Resource(clock, "one"), Resource(clock, "other")
    one.serve("a", 2.0, lambda: other.serve("b", 1.0))
    other.serve("c", 2.5)
    clock.run()
    assert [span.start_s for span in other.spans] == [0.0, 2.5]
    assert {span.resource for span in one.spans} == {"one"}
