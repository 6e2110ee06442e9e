"""`plan --rampup-batch-size`: the layout that is best over the whole ramp."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from costmodel.__main__ import main as simulate
from planner.__main__ import main

RAMP = ("--tokens", "2e10", "--rampup-batch-size", "8", "8", "900000")
ASKED = (
    *("--model", "gpt-1.3b", "--gpus", "16", "--global-batch", "128"),
    *("--pp", "1", "--cp", "1", "--top", "1"),
)


def planned(capsys: pytest.CaptureFixture[str], *argv: str) -> dict[str, Any]:
    assert main([*argv, "--json"], prog="plan") == 0
    document: dict[str, Any] = json.loads(capsys.readouterr().out)
    return document


def simulated(capsys: pytest.CaptureFixture[str], layout: Path) -> dict[str, Any]:
    assert simulate([str(layout), *RAMP, "--json"], prog="simulate") == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)["training"]
    return found


def test_j1_phases_of_the_ramp_have_plans_of_their_own(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Sixteen ranks, and a batch that starts with eight sequences: the plan for 128
    cannot run the first ones."""
    at_end = planned(capsys, *ASKED)
    found = planned(capsys, *ASKED, *RAMP)
    over = found["over_ramp"]
    assert over["recommended"] == "phases"
    assert over["days_in_phases"] < 0.98 * over["days"]
    assert found["layout"] == at_end["layout"]  # of the longest phase
    last = over["phases"][-1]
    assert last["layout"]["summary"] == at_end["layout"]["summary"]
    assert [over["phases"][0]["from"], last["to"]] == [8, 128]
    changes = len(over["phases"]) - 1
    assert changes > 0
    spent = sum(one["days"] for one in over["phases"]) + changes * 600 / 86400
    assert over["days_in_phases"] == pytest.approx(spent)
    assert found["training"]["days"] == pytest.approx(over["days_in_phases"])
    batches = [row["global_batch"] for row in found["training"]["rampup"]["batches"]]
    assert batches == list(range(8, 129, 8))


def test_j1_where_stops_are_dear_one_layout_is_best_over_the_ramp(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """And `simulate` finds the days of it that are said."""
    at_end = planned(capsys, *ASKED)
    out = tmp_path / "layout.json"
    dear = ("--restart-time", "1e7", "--out", str(out))
    found = planned(capsys, *ASKED, *RAMP, *dear)
    over = found["over_ramp"]
    assert over["recommended"] == "one layout"
    assert found["layout"] != at_end["layout"]
    assert found["estimate"]["step_time_s"] > at_end["estimate"]["step_time_s"]
    assert 0 < found["bound"]["gap"] < 1
    whole = simulated(capsys, out)
    assert whole["days"] == pytest.approx(over["days"])
    assert found["training"] == whole


def test_both_are_said_in_words(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*ASKED, *RAMP], prog="plan") == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "over the ramp in phases" in said
    assert "to re-plan (the best layout for all of it takes" in said
    assert main([*ASKED, *RAMP, "--restart-time", "1e7"], prog="plan") == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "over the ramp this layout, the best of" in said


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (("--rampup-batch-size", "8", "7", "900"), "choose a divisor of 120"),
        (("--rampup-batch-size", "128", "8", "900"), "start below it"),
        ((*RAMP[2:], "--gpus", "8,16"), "--rampup-batch-size is about one plan"),
        ((*RAMP[2:], "--days", "9"), "--rampup-batch-size is about one plan"),
        ((*RAMP[2:], "--dp", "16"), "on 16 GPUs was found for a batch of 8"),
    ],
)
def test_a_wrong_ramp_is_one_line_and_exit_2(
    more: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*ASKED, *RAMP[:2], *more], prog="plan") == 2
    caught = capsys.readouterr()
    assert said in caught.err
    assert caught.out == ""
