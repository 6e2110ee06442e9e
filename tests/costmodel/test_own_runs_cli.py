"""`simulate --calibrate`: of tables, one layout, sweeps, files; and strange input."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from costmodel.runs.calibrate import calibrate
from costmodel.simulation.pricing import simulate as from_python
from tests.support.commanded import answered, refused, simulate
from tests.support.own_runs import measured, rows, written

ASKED = (
    *("--model", "gpt-1.3b", "--gpus", "16", "--tp", "2", "--pp", "2"),
    *("--framework", "megatron-lm", "--precision", "bf16"),
)
PACE = 1.15


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three runs that all take longer than estimated."""
    return measured(tmp_path_factory.mktemp("seen") / "seen.csv", rows(3), pace=PACE)


def test_one_layout_is_slower_and_says_what_moved(
    capsys: pytest.CaptureFixture[str], seen: Path, tmp_path: Path
) -> None:
    kept = tmp_path / "kept.json"
    before = answered(capsys, *ASKED)
    after = answered(
        capsys, *ASKED, "--calibrate", str(seen), "--save-calibration", str(kept)
    )
    assert 1.02 < after["step_time_s"] / before["step_time_s"] < PACE + 0.02
    assert sum(after["breakdown_s"].values()) == pytest.approx(after["step_time_s"])
    told = after["calibration"]
    assert told["rows_used"] == 3
    assert told["left_out"] == []
    assert all(one["error"] <= one["spread"] * 1.001 for one in told["moved"])
    again = answered(capsys, *ASKED, "--calibration", str(kept))
    assert again == after
    python = from_python(
        "gpt-1.3b",
        gpus=16,
        tp=2,
        pp=2,
        framework="megatron-lm",
        precision="bf16",
        calibration=calibrate(seen),
    )
    assert python.step_time_s == pytest.approx(after["step_time_s"])


def test_a_table_a_sweep_and_a_file_are_calibrated(
    capsys: pytest.CaptureFixture[str], seen: Path, tmp_path: Path
) -> None:
    asked = str(written(tmp_path / "asked.csv", rows(2)))
    by = ("--calibrate", str(seen))
    tables = [answered(capsys, "--runs", asked, *more) for more in ((), by)]
    ratio = [one["runs"][0]["estimate"]["step_time_s"] for one in tables]
    assert ratio[1] / ratio[0] > 1.02
    assert tables[1]["calibration"]["rows_used"] == 3
    sweeps = [answered(capsys, *ASKED, "--sweep", "zero=1", *by)]
    one = answered(capsys, *ASKED, "--zero", "1", *by)
    point = sweeps[0]["sweep"][0]["estimate"]
    assert point["step_time_s"] == pytest.approx(one["step_time_s"])
    assert sweeps[0]["calibration"] == one["calibration"]
    file = tmp_path / "layout.json"
    assert simulate(*ASKED, "--out", str(file)) == 0
    capsys.readouterr()
    found = answered(capsys, str(file), *by)
    without = answered(capsys, str(file))
    assert found["step_time_s"] > 1.02 * without["step_time_s"]


def test_what_moved_is_shown(capsys: pytest.CaptureFixture[str], seen: Path) -> None:
    assert simulate(*ASKED, "--calibrate", str(seen)) == 0
    said = capsys.readouterr().out
    assert "calibrated by 3 step times" in said
    assert "step/framework:megatron-lm" in said


def test_where_nothing_moved_it_says_so(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    as_estimated = measured(tmp_path / "seen.csv", rows(1))
    assert simulate(*ASKED, "--calibrate", str(as_estimated)) == 0
    said = capsys.readouterr().out
    assert "calibrated by 1 step time; runs scatter by" in said
    assert "no coefficient changed by more than 0.5%" in said
    assert "before      after" not in said


def test_what_execute_printed_calibrates(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    file = tmp_path / "layout.json"
    assert simulate(*ASKED, "--out", str(file)) == 0
    capsys.readouterr()
    before = answered(capsys, str(file))
    run = {
        "layout_file": json.loads(file.read_text()),
        "step_time_s": {"median": 1.2 * before["step_time_s"]},
        "peak_allocated_bytes": [before["peak_allocated_bytes"]],
    }
    (tmp_path / "run.json").write_text(json.dumps(run))
    by = ("--calibrate", str(tmp_path / "run.json"))
    after = answered(capsys, str(file), *by)
    assert 1.02 < after["step_time_s"] / before["step_time_s"] < 1.2
    run["step_time_s"] = {}
    (tmp_path / "run.json").write_text(json.dumps(run))
    assert "no step of it was timed" in refused(capsys, str(file), *by)


def test_wrong_questions(
    capsys: pytest.CaptureFixture[str], seen: Path, tmp_path: Path
) -> None:
    table = str(seen)
    both = ("--calibrate", table, "--calibration", table)
    assert "leave one of the two out" in refused(capsys, *ASKED, *both)
    alone = ("--save-calibration", str(tmp_path / "kept.json"))
    assert "give --calibrate too" in refused(capsys, *ASKED, *alone)
    assert "not a calibration" in refused(
        capsys, *ASKED, "--calibration", str(written_json(tmp_path / "other.json"))
    )
    assert "cannot be read" in refused(capsys, *ASKED, "--calibrate", "nothing.csv")
    onto = ("--calibrate", table, "--save-calibration", table)
    assert "--save-calibration" in refused(capsys, *ASKED, *onto)
    inference = ("--inference", "--model", "gpt-1.3b", "--gpus", "1")
    assert "--calibrate" in refused(capsys, *inference, "--calibrate", table)
    assert list(tmp_path.glob("kept.json")) == []


def written_json(path: Path) -> Path:
    path.write_text("{}")
    return path
