"""The progress line: on a terminal only, for long work only, and it leaves no trace."""

from __future__ import annotations

from math import inf

import pytest

from planner.report.progress import Meter, meter_words, metered
from planner.search.search import Progress


def at(seconds: float, value: float = 2.0) -> Progress:
    return Progress(simulated=3, value=value, lower=1.0, seconds=seconds)


def test_short_work_shows_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    Meter(unit="step_time_s")(at(0.5))
    assert capsys.readouterr().err == ""


def test_long_work_shows_a_line_at_a_time(capsys: pytest.CaptureFixture[str]) -> None:
    meter = Meter(unit="step_time_s")
    for seconds in (1.1, 1.15, 1.4):
        meter(at(seconds))
    err = capsys.readouterr().err
    assert err.count("3 simulated, best step_time_s 2, gap 50.00%") == 2
    assert "\n" not in err


def test_nothing_found_yet_is_said() -> None:
    assert meter_words(at(2, inf), "step_time_s") == "3 simulated, none fits so far"


def test_without_a_terminal_there_is_no_meter() -> None:
    with metered("step_time_s") as meter:
        assert meter is None
