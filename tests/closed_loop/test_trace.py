"""execute --trace → simulate --compare, on two ranks of this machine."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from runtime.cli import execute
from tests.support.commanded import answered, refused, simulate
from tests.support.forked_workers import forked
from tests.support.traces import tables

ASKED = "gpt-tiny --seq-len 32 --global-batch 4 --gpus 2 --precision fp32"


def test_the_trace_of_a_run_stands_beside_the_priced_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for file, degree in (("a.json", "--pp"), ("b.json", "--dp")):
        assert simulate(*ASKED.split(), degree, "2", "--out", file) == 0
    capsys.readouterr()
    with forked():
        asked = "a.json --device cpu --steps 7 --trace traces --json"
        assert execute.run(asked.split()) == 0, capsys.readouterr().err
    ran = json.loads(capsys.readouterr().out)
    db = tables((tmp_path / "traces" / "actions.json").read_text())
    names = [name for (name,) in db.execute("select name from process order by pid")]
    assert names == ["rank 0: stage 0", "rank 1: stage 1"]
    found = answered(capsys, "a.json", "--compare", "traces")["compared"]
    assert found["steps"] == 3  # of 7, without warm-up and torch's trace
    rows = {(one["action"], one["stage"]): one for one in found["actions"]}
    for stage in (0, 1):
        for action in ("F", "B"):
            row = rows[action, stage]
            assert row["count"] == 4
            assert 0 < row["measured_s"] < found["measured_step_s"]
    assert rows["RECV_F", 1]["count"] == 4
    assert rows["STEP", 0]["measured_s"] > 0
    timed = ran["step_time_s"]
    assert found["measured_step_s"] <= timed["p90"] * 1.5
    longer = [one["longer_s"] for one in found["actions"]]
    assert longer == sorted(longer, reverse=True)
    said = refused(capsys, "b.json", "--compare", "traces")
    assert "pp 2" in said
    assert "dp 2" in said
    torchs = refused(capsys, "a.json", "--compare", "traces/rank-0.json")
    assert "actions.json" in torchs
