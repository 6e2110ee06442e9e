"""`benchmarks.failures`, a few of each: killed workers cost no more than time."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from benchmarks import failures
from benchmarks.failures import STEPS, elastic, killed, soak
from benchmarks.running import Wrong, furthest, layout, losses, uninterrupted


@pytest.mark.matrix
def test_killed_workers_cost_no_loss_and_seconds(tmp_path: Path) -> None:
    """One in the middle of a checkpoint, one in a step."""
    file = layout(tmp_path)
    whole = uninterrupted(file, tmp_path / "whole", STEPS)
    found = killed(file, tmp_path / "run", whole, Random(3), count=2)
    assert found.difference <= 1e-6
    assert "saving the checkpoint" in found.during[0]
    assert max(found.restarts_s) < 15  # of a busy machine
    goodput = found.goodput
    assert goodput["failures"] == 2
    assert 0 < goodput["measured"] < 1
    spent = goodput["progress_s"] + sum(goodput["lost_s"].values())
    assert spent == pytest.approx(goodput["wall_s"], rel=0.01)


@pytest.mark.matrix
def test_a_machine_that_is_lost_and_comes_back_costs_no_sample(tmp_path: Path) -> None:
    found = elastic(tmp_path, 2, 150)
    assert [one["machines"] for one in found["events"]] == [1, 2]
    assert [one["machines"] for one in found["layouts"]] == [2, 1, 2]
    assert found["layouts"][1]["step"] == found["events"][0]["from step"]
    assert "1 of 2 machines: dp 2 → 1 rank, from step" in found["said"][0]
    assert found["largest difference of a loss"] <= 1e-5
    assert found["goodput"]["failures"] == 2


@pytest.mark.matrix
def test_memory_and_files_are_flat_over_kills(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(failures, "SAMPLE_S", 0.2)
    found = soak(tmp_path, count=1, steps=200, seed=0)
    assert found["steps"] == 200
    assert {"launcher", "server"} <= {one["who"] for one in found["processes"]}
    for one in (one for one in found["processes"] if one["seconds"] > 10):
        begun, ended = one["files"]
        assert ended <= begun + 6, one  # a checkpoint's, or a start's
        small, large = one["resident_mb"]
        assert large <= 1.1 * small, one


def test_steps_that_are_lost_or_done_twice_are_found(tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    line = '{{"step": {}, "loss": 1.0}}\n'
    log.write_text("".join(line.format(step) for step in (1, 2, 3)))
    assert losses(log) == [1.0] * 3
    assert furthest([1.0, 2.0], [1.0, 2.5]) == 0.5
    for wrong in ((1, 3), (1, 2, 2)):
        log.write_text("".join(line.format(step) for step in wrong))
        with pytest.raises(Wrong, match="lost or done twice"):
            losses(log)
