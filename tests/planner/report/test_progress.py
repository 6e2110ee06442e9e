"""The line of a search: what was found, how far off it may be, how long is left."""

from __future__ import annotations

from math import inf

from planner.report.progress import meter_words, metered
from planner.search.search import Progress


def at(seconds: float, value: float = 2.0, lower: float = 1.0) -> Progress:
    return Progress(simulated=3, value=value, lower=lower, seconds=seconds)


def test_nothing_found_yet_is_said() -> None:
    said = meter_words(at(2, inf), "step_time_s")
    assert said == "planning: 3 layouts simulated, none fits so far, 2 s"


def test_what_is_left_follows_from_how_fast_the_gap_closes() -> None:
    first = at(1.0, lower=1.0)
    said = meter_words(at(3.0, lower=1.5), "step_time_s", first)
    assert said.endswith("best step 2.00 s, gap 25.00 %, about 2 s left")
    stuck = meter_words(at(3.0), "step_time_s", first)
    assert stuck.endswith("gap 50.00 %, 3 s")


def test_without_a_terminal_there_is_no_meter() -> None:
    with metered("step_time_s") as meter:
        assert meter is None
