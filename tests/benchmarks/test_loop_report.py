"""The verdict on a closed loop, from rows that are given."""

from __future__ import annotations

from dataclasses import replace
from xml.etree import ElementTree

import pytest

from benchmarks.loop_report import Row, Table, drawing, words


def row(name: str, predicted_s: float, rounds_s: tuple[float, ...]) -> Row:
    return Row(
        name=name,
        predicted_s=predicted_s,
        measured_s=sorted(rounds_s)[len(rounds_s) // 2],
        rounds_s=rounds_s,
        predicted_bytes=(100e6, 90e6),
        measured_bytes=(100e6, 100e6),
    )


DP = row("dp", 1.0, (1.01, 1.00, 0.99))
TP = row("tp", 1.5, (1.52, 1.50, 1.49))
PP = row("pp", 1.2, (0.98, 1.02, 1.00))
TABLE = Table(model="gpt-loop", ranks=2, planned="dp", rows=(DP, TP, PP))


def test_a_choice_that_is_not_told_apart_from_the_best() -> None:
    near = replace(TABLE, rows=(DP, TP, replace(PP, measured_s=0.99)))
    found = near.choice()
    assert found["best"] == "pp"
    assert not found["is_best"]
    assert found["is_near"]
    assert not found["distinguishable"]


def test_a_choice_that_is_told_apart_from_the_best() -> None:
    found = replace(TABLE, planned="tp").choice()
    assert found["distinguishable"]
    assert not found["is_near"]
    low, high = found["slower_interval"]
    assert 0.4 < low < found["slower"] < high < 0.6


def test_the_summary_counts_the_rank_that_is_missed_by_most() -> None:
    found = TABLE.summary()
    assert found["memory_largest_error"] == pytest.approx(0.1)
    assert found["time_mean_error"] == pytest.approx(0.2 / 3)
    assert found["kendall_tau"] == 1.0
    assert "and was measured fastest" in words(found)


def test_the_drawing_has_a_dot_for_every_layout_and_table() -> None:
    root = ElementTree.fromstring(drawing([TABLE, replace(TABLE, ranks=4)]))
    titles = [
        item.text or "" for item in root.iter("{http://www.w3.org/2000/svg}title")
    ]
    assert len(titles) == 6
    assert any("gpt-loop, 4 ranks, pp" in title for title in titles)
