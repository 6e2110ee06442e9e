"""`plan --calibrate`: searched, bounded and priced on the machine that runs tell of."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from costmodel.__main__ import main as simulate
from planner.__main__ import main as plan
from tests.support.own_runs import measured, rows

ASKED = ("--model", "gpt-1.3b", "--gpus", "8", "--framework", "megatron-lm")
PACE = 1.2


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("seen")
    return str(measured(folder / "seen.csv", rows(3), pace=PACE))


def answered(capsys: pytest.CaptureFixture[str], *argv: str) -> dict[str, Any]:
    assert plan([*ASKED, *argv, "--json"], "plan") == 0
    document: dict[str, Any] = json.loads(capsys.readouterr().out)
    return document


def test_the_plan_is_what_simulate_says_of_it(
    capsys: pytest.CaptureFixture[str], seen: str, tmp_path: Path
) -> None:
    file = str(tmp_path / "layout.json")
    by = ("--calibrate", seen)
    found = answered(capsys, *by, "--out", file)
    plain = answered(capsys)
    step_s = found["estimate"]["step_time_s"]
    assert 1.0 < step_s / plain["estimate"]["step_time_s"] < PACE + 0.03
    assert found["bound"]["lower"] <= step_s * (1 + 1e-9)
    assert found["bound"]["gap"] < 0.05
    assert found["calibration"]["rows_used"] == 3
    assert simulate([file, *by, "--json"], "simulate") == 0
    again = json.loads(capsys.readouterr().out)
    assert again["step_time_s"] == pytest.approx(step_s)
    for name, value in found["estimate"]["interval"].items():
        assert again["interval"][name] == pytest.approx(value)
    for other in found["alternatives"]:
        assert other["estimate"]["step_time_s"] >= step_s * (1 - 1e-9)


def test_what_moved_is_shown(capsys: pytest.CaptureFixture[str], seen: str) -> None:
    assert plan([*ASKED, "--calibrate", seen], "plan") == 0
    assert "calibrated by 3 step times" in capsys.readouterr().out
    assert plan([*ASKED, "--gpus", "4,8", "--calibrate", seen], "plan") == 0
    assert "calibrated by 3 step times" in capsys.readouterr().err
    both = ["--diff", "a.json", "b.json", "--calibrate", seen]
    assert plan(both, "plan") == 2
    assert "leave --calibrate" in capsys.readouterr().err
