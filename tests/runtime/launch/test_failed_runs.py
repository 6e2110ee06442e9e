"""`execute` as a user runs it, when a rank hangs."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from benchmarks.running import Wrong, descendants, execute, layout


@pytest.mark.slow
def test_a_stopped_rank_is_started_again_and_at_last_every_rank_is_told_of(
    tmp_path: Path,
) -> None:
    file = layout(tmp_path)
    words = f"{file} --device cpu --steps 100000 --timeout 3 --max-restarts 1"
    with execute(words, tmp_path / "run") as running:
        for attempt in range(2):
            running.until(lambda: len(running.events("ready")) > attempt, "start")  # noqa: B023
            done = len(running.events("step"))
            running.until(lambda: len(running.events("step")) > done + 3, "steps")  # noqa: B023
            os.kill(running.workers()[1], signal.SIGSTOP)
        with pytest.raises(Wrong, match="exit code 1"):
            running.document()
        assert descendants(running.process.pid) == []
        lines = running.ended().splitlines()
    assert sum("a worker died" in line and "1 of 1" in line for line in lines) == 1
    waiting = [line for line in lines if "imed out" in line]
    hung = [line for line in lines if line.startswith("rank") and " was in " in line]
    assert len(hung) == 1
    assert len(waiting) == 2  # the rank's own line, and the error
    assert "ended with exit code 1 in step" in waiting[0]
    assert any(f", {name}" in waiting[0] for name in ("all_", "reduce_", "barrier"))
    assert waiting[1].startswith("execute: rank ")
    assert hung[0] in waiting[1]
