"""Another number of machines: the question to `plan`, what it answers, and what is said
of it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from costmodel.__main__ import main as simulate
from costmodel.simulation.layout_files import job_of, read_layout_file
from costmodel.simulation.serialization import LayoutFile
from profiles.errors import Contradiction, RunFailed
from runtime.checkpoint.directory import Found
from runtime.launch import attempts as attempts_module
from runtime.launch import replan, run
from runtime.launch.agent import Attempt
from runtime.launch.attempts import Attempts
from runtime.launch.replan import Layouts, degrees, planned, question
from runtime.launch.run import prepare
from runtime.train.options import RunOptions
from tests.runtime.run_options import run_options

ASKED = "--model gpt-tiny --seq-len 32 --global-batch 4 --precision fp32"


def file_of(place: Path, words: str, gpus: int) -> LayoutFile:
    out = place / f"layout-{gpus}.json"
    asked = f"{ASKED} --gpus {gpus} {words} --out {out}"
    assert simulate(asked.split()) == 0
    return read_layout_file(out)


@pytest.fixture
def two(tmp_path: Path) -> LayoutFile:
    return file_of(tmp_path, "--tp 2", 2)


def test_the_same_job_is_asked_about(two: LayoutFile, tmp_path: Path) -> None:
    words = question(two, 1, tmp_path)
    said = dict(zip(words[::2], words[1::2], strict=False))
    assert said["--model"] == "gpt-tiny"
    assert (said["--seq-len"], said["--global-batch"]) == ("32", "4")
    assert (said["--gpus"], said["--precision"]) == ("1", "fp32")
    assert "--executable" in words
    spelled = replace(two, job={**two.job, "model": {"name": "mine"}})
    model = question(spelled, 1, tmp_path)[1]
    assert json.loads(Path(model).read_text()) == {"name": "mine"}


def test_what_is_planned_is_of_the_same_job(two: LayoutFile) -> None:
    one = planned(two, 1)
    assert (one.gpus, one.layout.gpus) == (1, 1)
    assert job_of(one) == job_of(two)
    assert one.layout.precision_name == two.layout.precision_name
    assert degrees(one) == "1 rank"
    assert degrees(two) == "tp 2"


def test_where_nothing_fits_the_reason_is_said(two: LayoutFile) -> None:
    with pytest.raises(RunFailed, match="no layout of this job for 7 ranks: plan"):
        planned(two, 7)


def test_each_number_of_ranks_is_planned_for_once(
    two: LayoutFile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []
    one = file_of(tmp_path, "", 1)

    def answer(_: LayoutFile, gpus: int) -> LayoutFile:
        asked.append(gpus)
        return one

    monkeypatch.setattr(replan, "planned", answer)
    layouts = Layouts(two)
    assert [layouts.of(gpus) for gpus in (2, 1, 1, 2)] == [two, one, one, two]
    assert asked == [1]


class Asked:
    """What workers would be asked."""

    def __init__(self, file: LayoutFile, *_: Path) -> None:
        self.file = file

    def write(self, path: Path) -> None:
        path.write_text(str(self.file.gpus))


def test_a_change_of_layout_is_one_line_and_in_the_history(
    two: LayoutFile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    states, place = tmp_path / "states", tmp_path / "own"
    place.mkdir()
    options = replace(
        run_options(tmp_path / "layout-2.json"),
        **_elastic(tmp_path, nnodes=2),
    )
    layouts = Layouts(two, known={1: file_of(tmp_path, "", 1)})
    attempts = Attempts(folder=place, options=options, planned=layouts, ask=Asked)

    def prepared(machines: int) -> str:
        found = Attempt(ranks=machines, machines=machines, has_rank_0=True)
        said = attempts.prepare(found)
        assert attempts.asked.read_text() == str(machines)
        return said

    assert prepared(2) == ""
    monkeypatch.setattr(attempts_module, "latest", lambda _: states / "step-000040")
    assert prepared(1) == "1 of 2 machines: tp 2 → 1 rank, from step 40"
    assert prepared(1) == ""
    assert prepared(2) == "2 of 2 machines: 1 rank → tp 2, from step 40"
    lines = (states / "history.jsonl").read_text().splitlines()
    assert [json.loads(line)["gpus"] for line in lines] == [2, 1, 1, 2]
    assert attempts.seen() == {}  # rank 0 wrote no result here


def _elastic(place: Path, **more: Any) -> dict[str, Any]:
    return {
        "elastic": (1, None),
        "checkpoint_dir": place / "states",
        "checkpoint_every": 5,
        "rdzv_endpoint": "127.0.0.1:29400",
        **more,
    }


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"elastic": (3, 4), "nnodes": 2}, "choose MIN <= --nnodes <= MAX"),
        ({"elastic": (1, 1), "nnodes": 2}, "choose MIN <= --nnodes <= MAX"),
        ({"checkpoint_every": None, "nnodes": 2}, "--checkpoint-every N"),
        ({"rdzv_endpoint": None, "elastic": (1, 2)}, "meet at HOST:PORT"),
    ],
)
def test_machines_that_do_not_fit_are_refused(
    two: LayoutFile, tmp_path: Path, asked: dict[str, Any], said: str
) -> None:
    assert two.gpus == 2
    options = run_options(tmp_path / "layout-2.json")
    with pytest.raises(Contradiction, match=said):
        prepare(replace(options, **_elastic(tmp_path, **asked)))


def test_a_folder_with_checkpoints_is_gone_on_from(
    two: LayoutFile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A machine that comes back gives the command that it gave before."""
    one = file_of(tmp_path, "", 1)
    monkeypatch.setattr(replan, "planned", lambda *_: one)
    options: RunOptions = replace(
        run_options(tmp_path / "layout-2.json"),
        **_elastic(tmp_path, nnodes=2),
        steps=9,
    )
    assert prepare(options).layouts.of(1) is one
    folder = tmp_path / "states" / "step-000005"
    monkeypatch.setattr(run, "latest", lambda _: folder)
    monkeypatch.setattr(run, "resumable", lambda *_: Found(path=folder, meta={}))
    assert prepare(options).file.gpus == 2
    with pytest.raises(Contradiction, match="--steps is 5"):
        prepare(replace(options, steps=5))
