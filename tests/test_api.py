"""The public calls: documented on a page that runs, and what their results say."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

import costmodel
import planner
import profiles
from costmodel.cli import simulate as command
from planner import Plan
from planner.cli import plan as plan_command
from profiles.errors import Contradiction, InvalidSpec, UnknownName

Run = Callable[..., subprocess.CompletedProcess[str]]
TINY = profiles.load_model("gpt-tiny")
DGX = profiles.load_cluster("dgx-a100-80gb")
ASKED: dict[str, Any] = {
    "gpus": 4,
    "tp": 2,
    "pp": 2,
    "global_batch": 8,
    "recompute": "full",
}
OPTIONS = ["--model", "gpt-tiny", "--gpus", "4", "--global-batch", "8"]


class Cells(HTMLParser):
    """The tags and the texts of a piece of HTML."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.texts: list[str] = []
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.tags.append(tag)

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


@pytest.fixture(scope="module")
def plan() -> Plan:
    return planner.plan(TINY.job(global_batch=8), DGX, gpus=4, runners_up=2)


def test_the_page_shows_what_its_examples_print(run: Run, root: Path) -> None:
    done = run("python", "-m", "docs.examples", "--check", str(root / "docs/api.md"))
    assert (done.returncode, done.stdout) == (0, "changed: nothing\n"), done.stderr


def test_simulate_answers_as_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    argv = [*OPTIONS, "--tp", "2", "--pp", "2", "--recompute", "full", "--json"]
    assert command.run(argv) == 0
    found = costmodel.simulate("gpt-tiny", **ASKED)
    assert json.loads(json.dumps(found.to_dict())) == json.loads(
        capsys.readouterr().out
    )


def test_simulate_takes_names_files_and_what_was_loaded(tmp_path: Path) -> None:
    named = costmodel.simulate("gpt-tiny", cluster="dgx-a100-80gb", **ASKED)
    loaded = costmodel.simulate(TINY, cluster=DGX, **ASKED)
    assert loaded.to_dict() == named.to_dict()
    file = tmp_path / "mine.json"
    file.write_text('{"layers": 4, "hidden": 64, "heads": 4, "vocab": 512}')
    assert costmodel.simulate(file, gpus=2).job.model == "mine"
    assert profiles.load_model(file).name == "mine"


def test_options_are_checked_as_the_commands_are() -> None:
    cut = costmodel.simulate("gpt-tiny", pp=2, stage_layers=[1, 3], global_batch=8)
    assert [stage.body for stage in cut.layout.stages] == [1, 3]
    wrong: dict[str, Any] = {
        "tp": 0,
        "sequence_parallel": 1,
        "zero": True,
        "offload": "cpu",
    }
    for name, value in wrong.items():
        with pytest.raises(InvalidSpec, match=f"^{name}="):
            costmodel.simulate("gpt-tiny", gpus=4, **{name: value})
    with pytest.raises(UnknownName, match="did you mean micro_batch"):
        costmodel.simulate("gpt-tiny", gpus=4, micro_batsch=2)
    with pytest.raises(Contradiction, match="does not divide"):
        costmodel.simulate("gpt-tiny", gpus=4, tp=3)


def test_estimate_prices_the_layout_that_simulate_resolved() -> None:
    found = costmodel.simulate("gpt-tiny", **ASKED)
    again = costmodel.estimate(found.job, DGX, found.layout)
    assert again.step_time_s == found.step_time_s
    assert again.peak_memory_bytes == found.peak_memory_bytes


def test_a_plan_is_the_commands_document(
    plan: Plan, capsys: pytest.CaptureFixture[str]
) -> None:
    assert plan_command.run([*OPTIONS, "--top", "2", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    found = json.loads(json.dumps(plan.to_dict()))
    assert found.keys() == told.keys()
    for each in (told, found):
        each["search"].pop("seconds")
    said_otherwise = {"assumed", "warnings", "estimate", "alternatives"}
    for name in told.keys() - said_otherwise:
        assert found[name] == told[name], name
    assert found["estimate"]["step_time_s"] == told["estimate"]["step_time_s"]
    assert plan.layout is not None
    assert plan.layout.to_dict() == plan.to_dict()["layout"]
    assert plan.assumed["precision"] == "bf16"


def test_a_plan_without_a_layout_is_a_document_too() -> None:
    none = planner.plan(TINY.job(global_batch=8), DGX, gpus=4, memory_limit_bytes=1.0)
    assert (none.layout, none.estimate) == (None, None)
    document = json.loads(json.dumps(none.to_dict()))
    assert document["layout"] is document["estimate"] is None
    assert document["search"]["status"] == "infeasible"
    assert "infeasible" in none._repr_html_()


def test_results_are_tables_in_a_notebook(plan: Plan) -> None:
    assert plan.estimate is not None
    assert plan.layout is not None
    for result, rows in (
        (plan, 1 + 1 + len(plan.runners_up)),
        (plan.estimate, 5),
        (plan.layout, 1 + len(plan.layout.stages)),
    ):
        cells = Cells(result._repr_html_())
        assert set(cells.tags) <= {"table", "caption", "tr", "th", "td"}
        assert cells.tags.count("tr") == rows


def test_a_strangers_text_is_shown_and_never_run() -> None:
    found = costmodel.simulate("gpt-tiny", **ASKED)
    evil = "<script>alert('&')</script>"
    shown = replace(found, device=evil, warnings=(evil,))._repr_html_()
    assert "<script" not in shown
    assert Cells(shown).texts.count(evil) == 1
    assert evil in Cells(shown).texts[0]


def test_a_job_is_the_models_usual_training_unless_said() -> None:
    usual, other = TINY.job(), TINY.job(seq_len=128, global_batch=4, optimizer="sgd")
    assert (usual.seq_len, usual.global_batch) == (TINY.seq_len, TINY.global_batch)
    assert (other.seq_len, other.tokens, other.optimizer) == (128, 512, "sgd")
    with pytest.raises(InvalidSpec):
        TINY.job(global_batch=0)
