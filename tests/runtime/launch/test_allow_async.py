"""`execute` of a layout whose steps are not flushed: only where that is allowed."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from costmodel.layout.strategy import Uniform, spell_out
from costmodel.simulation.layout_files import write_layout
from runtime.checkpoint.directory import step_of, whole
from tests.support.small_jobs import job

Execute = Callable[..., tuple[int, str, str]]
ON_CPU = ("--device", "cpu", "--json")


@pytest.fixture
def layout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A layout file of two stages under PipeMare, in the working folder."""
    monkeypatch.chdir(tmp_path)
    asked = job()
    choice = Uniform(pp=2, precision="fp32", micro_batch=1, schedule="pipemare", zero=0)
    plan = spell_out(choice, asked.graph, asked.global_batch)
    write_layout(tmp_path / "layout.json", asked, "dgx-a100-80gb", plan)
    return "layout.json"


def test_without_the_word_nothing_starts(executing: Execute, layout: str) -> None:
    code, out, err = executing(layout, *ON_CPU, "--steps", "2")
    assert (code, out) == (2, "")
    assert "does not flush" in err
    assert "--allow-async" in err


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (("--on-nan", "rollback", "--checkpoint-dir", "state"), "--on-nan rollback"),
        (("--compile",), "--compile"),
        (("--stale-gradients", "spike"), "sgd-momentum"),
    ],
)
def test_what_does_not_go_with_it_is_refused(
    executing: Execute, layout: str, given: tuple[str, ...], said: str
) -> None:
    code, out, err = executing(layout, *ON_CPU, "--allow-async", *given)
    assert (code, out) == (2, "")
    assert said in err


def test_it_trains_and_goes_on_from_a_checkpoint(
    executing: Execute, layout: str
) -> None:
    """The pipeline is drained for a checkpoint; the peak is that of a full one."""
    asked = (layout, *ON_CPU, "--allow-async", "--stale-gradients", "t1")
    saved = ("--checkpoint-dir", "state", "--checkpoint-every", "3")
    code, out, err = executing(*asked, *saved, "--steps", "7", "--lr", "0.003")
    assert code == 0, err
    document = json.loads(out)
    assert len(document["losses"]) == 7
    assert document["losses"][-1] < document["losses"][0]
    assert document["error"]["peak_memory"] == pytest.approx(0, abs=0.1)
    assert sorted(step_of(one) for one in whole(Path("state"))) == [6, 7]
    code, out, err = executing(*asked, *saved, "--steps", "9", "--resume")
    assert code == 0, err
    assert json.loads(out)["first_step"] == 7
