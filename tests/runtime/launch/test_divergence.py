"""A loss that is not finite: the run stops and saves nothing of it, or goes back and
leaves out the batch that did it."""

from __future__ import annotations

import json
from dataclasses import replace
from math import nan
from pathlib import Path
from typing import Any

import pytest

from costmodel.layout.strategy import Uniform, spell_out
from costmodel.simulation.layout_files import write_layout
from profiles.errors import Contradiction
from runtime.checkpoint.directory import latest, step_of
from runtime.launch.divergence import Rollbacks
from runtime.launch.processes import process_group
from runtime.launch.run import Request, prepare
from runtime.launch.worker import Run
from runtime.train.options import Training
from runtime.train.trainer import StepResult, Trainer, batch_of
from tests.runtime.run_options import run_options
from tests.support.small_jobs import job

STEPS = 8


def test_batches_that_are_left_out_are_never_read() -> None:
    for skipped in ((), (0,), (3,), (2, 3, 7), (7, 2, 2)):
        read = [batch_of(step, skipped) for step in range(12)]
        assert read == [one for one in range(30) if one not in skipped][:12]


def test_first_the_batch_then_all_since_the_checkpoint_then_no_more() -> None:
    rollbacks = Rollbacks()
    one = rollbacks.next(6, to=4)
    assert one is not None
    assert (one.step, one.to, one.skipped) == (7, 4, (6,))
    assert "loss of step 7 is not finite: back to the checkpoint of step 4" in str(one)
    two = rollbacks.next(6, to=4)
    assert two is not None
    assert two.skipped == (4, 5, 7)  # 6 was left out already
    assert rollbacks.next(5, to=4) is None
    assert rollbacks.next(9, to=8) is not None  # another checkpoint, another chance


def run_of(place: Path, **asked: Any) -> dict[str, Any]:
    """A worker's whole run in this process; what it found."""
    question = job()
    choice = Uniform(precision="fp32", micro_batch=1, zero=0)
    layout = spell_out(choice, question.graph, question.global_batch)
    write_layout(place / "layout.json", question, "local", layout)
    request = Request(
        layout=json.loads((place / "layout.json").read_text()),
        device="cpu",
        data="synthetic",
        threads=1,
        result=str(place / "result.json"),
        checkpoint_dir=str(place / "states"),
        history=str(place / "history.jsonl"),
        progress=False,
        **{"steps": STEPS, "checkpoint_every": 3, **asked},
    )
    with process_group("cpu", timeout_s=20) as worker:
        Run(request, worker).run()
    found: dict[str, Any] = json.loads((place / "result.json").read_text())
    return found


@pytest.fixture
def poisoned(monkeypatch: pytest.MonkeyPatch) -> set[int]:
    """Batches whose steps lose their numbers."""
    batches: set[int] = set()
    step = Trainer.step

    def stepped(self: Trainer, number: int, **more: Any) -> StepResult:
        result = step(self, number, **more)
        if batch_of(number, self.skipped) not in batches:
            return result
        for leaf in self.optimizer.leaves:
            leaf.value.detach().fill_(nan)
        return replace(result, loss=nan)

    monkeypatch.setattr(Trainer, "step", stepped)
    return batches


def test_a_run_stops_at_once_and_saves_nothing_of_it(
    tmp_path: Path, poisoned: set[int]
) -> None:
    poisoned.add(5)  # of step 6, which would be saved
    found = run_of(tmp_path, training=Training())
    assert found["stopped"] == {"step": 6, "not_finite": "loss"}
    assert len(found["losses"]) == 6
    newest = latest(tmp_path / "states")
    assert newest is not None
    assert step_of(newest) == 3


def test_a_rollback_trains_as_if_the_batch_had_not_been_there(
    tmp_path: Path, poisoned: set[int]
) -> None:
    poisoned.add(4)
    log = str(tmp_path / "log.jsonl")
    found = run_of(tmp_path, on_nan="rollback", training=Training(log=log))
    assert found["stopped"] is None
    assert found["rollbacks"] == [{"step": 5, "to": 3, "skipped": [4]}]
    rows = [json.loads(line) for line in Path(log).read_text().splitlines()]
    assert [row["step"] for row in rows] == list(range(1, STEPS + 1))
    assert [row["loss"] for row in rows] == found["losses"]
    poisoned.clear()
    (tmp_path / "other").mkdir()
    with pytest.MonkeyPatch.context() as patch:
        loaded = Run._first_step

        def without(self: Run) -> int:
            self.trainer.skipped = (4,)
            return loaded(self)

        patch.setattr(Run, "_first_step", without)
        other = run_of(tmp_path / "other")
    assert found["losses"] == other["losses"]
    again = run_of(tmp_path, steps=STEPS + 2, resume=True)  # it stays left out
    longer = tmp_path / "longer"
    longer.mkdir()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Run, "_first_step", without)
        whole = run_of(longer, steps=STEPS + 2)
    assert again["losses"] == whole["losses"][STEPS:]


def test_a_run_whose_every_batch_is_bad_ends(
    tmp_path: Path, poisoned: set[int]
) -> None:
    poisoned.update(range(1, 100))
    found = run_of(tmp_path, on_nan="rollback")
    assert found["stopped"] == {"step": 1, "not_finite": "loss"}
    assert [one["skipped"] for one in found["rollbacks"]] == [[1], [0, 2]]


def test_a_rollback_needs_somewhere_to_go_back_to(tmp_path: Path) -> None:
    question = job()
    layout = spell_out(Uniform(precision="fp32"), question.graph, 2)
    write_layout(tmp_path / "layout.json", question, "local", layout)
    asked = replace(run_options(tmp_path / "layout.json"), on_nan="rollback")
    with pytest.raises(Contradiction, match="--on-nan rollback needs --checkpoint-dir"):
        prepare(asked)
