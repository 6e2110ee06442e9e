"""`benchmarks.failures`, a few of each: killed workers cost no more than time."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from benchmarks.failures import (
    STEPS,
    Wrong,
    furthest,
    killed,
    layout,
    losses,
    uninterrupted,
)


@pytest.mark.slow
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
