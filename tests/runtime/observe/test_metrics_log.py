"""What a run writes as it goes: logs, traces, TensorBoard's scalars."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from profiles.errors import InvalidFile
from runtime.observe.metrics_log import JsonLines, TensorBoard, require_journals, until
from runtime.trace.peak_memory import traced
from runtime.train.options import Training


def test_a_resumed_log_forgets_the_steps_that_come_again(tmp_path: Path) -> None:
    path = tmp_path / "logs" / "run.jsonl"
    log = JsonLines(path, done=0)
    for step in (1, 2, 3):
        log.write({"step": step, "loss": 1.0})
    log.close()
    log = JsonLines(path, done=2)
    log.write({"step": 3, "loss": 0.5})
    log.close()
    found = [json.loads(line) for line in path.read_text().splitlines()]
    assert [(one["step"], one["loss"]) for one in found] == [(1, 1), (2, 1), (3, 0.5)]


TORN = '{"step": 1, "loss": 2.0}\n{"step": 2, "loss": 1.0}\n{"step": 3, "lo'


def test_a_line_that_a_dying_run_left_torn_is_forgotten(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    path.write_text(TORN)
    assert len(until(path, 5)) == 2
    log = JsonLines(path, done=1)
    log.write({"step": 2, "loss": 0.5})
    log.close()
    found = [json.loads(line) for line in path.read_text().splitlines()]
    assert [(one["step"], one["loss"]) for one in found] == [(1, 2.0), (2, 0.5)]


@pytest.mark.parametrize(
    "content", ["a = 1\n", '{"loss": 2}\n', "[]\n", "\xff\n", "one line"]
)
def test_a_file_that_is_no_log_is_not_gone_on_with(
    tmp_path: Path, content: str
) -> None:
    path = tmp_path / "mine.txt"
    path.write_text('{"step": 1}\n' + content, encoding="latin-1")
    for done in (5, 0):  # nor is it written over by a run that begins
        with pytest.raises(InvalidFile, match=r"--log .*mine.txt exists and is not"):
            require_journals(Training(log=str(path)), done)


def test_a_log_and_a_trace_that_find_no_room_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = JsonLines(Path("/dev/full"), done=0)
    with pytest.raises(InvalidFile, match=r"--log .*full cannot be written: no space"):
        log.write({"step": 1, "loss": 1.0})
    with pytest.raises(OSError, match="No space"):
        log.close()

    def cut(_: object, path: str) -> None:
        Path(path).write_text('{"traceEvents": [{"name": "add')

    monkeypatch.setattr(torch.profiler.profile, "export_chrome_trace", cut)
    with (
        pytest.raises(InvalidFile, match=r"--trace .*rank-0.json cannot .*no space"),
        traced(tmp_path / "traces", 0, torch.device("cpu")),
    ):
        torch.ones(1)
    assert list((tmp_path / "traces").iterdir()) == []


def test_a_run_that_begins_writes_over_the_log_of_another(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    path.write_text(TORN)
    require_journals(Training(log=str(path)), 0)
    JsonLines(path, done=0).close()
    assert path.read_text() == ""


def test_tensorboard_gets_a_scalar_for_each_number(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    board = TensorBoard(tmp_path, done=0)
    board.write({"step": 1, "loss": 2.0})
    board.close()
    assert list(tmp_path.glob("events.out.tfevents.*"))
