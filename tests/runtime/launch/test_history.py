"""`runtime.launch.history`: what a run's time went to, over its restarts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from runtime.launch.history import History, Spent, layouts, words

SUMMARY = {"tp": 1, "dp": 2}


def at(time: float, event: str, **values: Any) -> dict[str, Any]:
    return {"event": event, "time": time, **values}


def started(time: float, machines: int = 2) -> dict[str, Any]:
    summary = {**SUMMARY, "dp": machines}
    return at(time, "started", gpus=machines, machines=machines, summary=summary)


def step(time: float, number: int) -> dict[str, Any]:
    return at(time, "step", step=number, seconds=1.0)


FAILED = [
    *(started(0), at(5, "ready", step=0), step(6, 1), step(7, 2)),
    *(at(7.5, "saved", step=2, seconds=0.5), step(8.5, 3)),
    *(started(10), at(11, "ready", step=2), step(12, 3), step(13, 4)),
    at(13.5, "saved", step=4, seconds=0.5),
]


def test_every_second_is_progress_or_lost_to_something() -> None:
    found = Spent.of(FAILED, now=14.0).document(every=2)
    assert found["wall_s"] == 9
    assert found["progress_s"] == 4
    assert found["lost_s"] == {
        "restart": 2.5,
        "replay": 1.0,
        "saving": 1.0,
        "other": 0.5,
    }
    assert found["measured"] == pytest.approx(4 / 9)
    assert (found["failures"], found["restarts_s"]) == (1, [2.5])
    # 1 − (0.5 / 2.5 + (2.5 + 1.25) / 9)
    assert found["predicted"] == pytest.approx(0.8 - 3.75 / 9)
    said = words(found)
    assert said.startswith(
        "goodput 44.4% (predicted 38.3%): 1 failure; lost to restart"
    )


def test_an_attempt_that_never_began_belongs_to_one_restart() -> None:
    again = [*FAILED[:6], started(9), started(10), *FAILED[7:]]
    assert Spent.of(again, now=14).restarts_s == [2.5]


def test_without_failures_nothing_but_saving_is_predicted() -> None:
    found = Spent.of(FAILED[:5], now=7.5).document(every=2)
    assert found["predicted"] == pytest.approx(0.8)
    assert found["measured"] == pytest.approx(0.8)
    assert found["best_interval_s"] is None
    unsaved = Spent.of([*FAILED[:4], *FAILED[6:10]], now=14).document(every=None)
    assert unsaved["predicted"] is None


def test_a_run_that_never_began_has_no_goodput() -> None:
    found = Spent.of([started(0)], now=3).document(every=None)
    assert (found["measured"], found["predicted"], words(found)) == (None, None, "")


def test_layouts_are_listed_once_each_time_they_change() -> None:
    entries = [
        *(started(0), at(1, "ready", step=0), started(2), at(3, "ready", step=2)),
        *(started(4, machines=1), started(5, machines=1), at(6, "ready", step=4)),
        *(started(7), at(8, "ready", step=6)),
    ]
    found = [(one["step"], one["machines"]) for one in layouts(entries)]
    assert found == [(0, 2), (4, 1), (6, 2)]


def test_a_torn_line_is_passed_over_and_nowhere_is_written(tmp_path: Path) -> None:
    file = tmp_path / "history.jsonl"
    history = History(file)
    history.add("ready", step=3)
    with file.open("a") as stream:
        stream.write('{"event": "step", "ti')
    assert [one["event"] for one in history.entries()] == ["ready"]
    nowhere = History(None)
    nowhere.add("ready", step=1)
    assert nowhere.entries() == []
    (tmp_path / "file").touch()
    History(tmp_path / "file" / "history").add("ready", step=1)  # which cannot be
