"""`plan --jobs`: a file of jobs, shared, as a table, a document and a page."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from planner.__main__ import main
from tests.support.rows import Obtained

TWO = """
[[jobs]]
model = "gpt-125m"
steps = 100
global_batch = 32
[[jobs]]
name = "second"
model = "gpt-125m"
tokens = 13107200
global_batch = 32
deadline_h = 10
priority = 2
"""


@pytest.fixture
def two(tmp_path: Path) -> Path:
    file = tmp_path / "jobs.toml"
    file.write_text(TWO)
    return file


def shared(capsys: pytest.CaptureFixture[str], *argv: str) -> dict[str, Any]:
    assert main(["--jobs", *argv, "--json"], prog="plan") == 0
    document: dict[str, Any] = json.loads(capsys.readouterr().out)
    return document


def test_jobs_share_a_cluster(capsys: pytest.CaptureFixture[str], two: Path) -> None:
    found = shared(capsys, str(two), "--gpus", "8")
    first, second = found["jobs"]
    assert (first["name"], second["name"]) == ("gpt-125m", "second")
    assert first["steps"] == 100
    assert second["steps"] == pytest.approx(13107200 / 32 / 2048)
    assert list(first["seconds"]) == ["1", "2", "4", "8"]
    ratio = second["seconds"]["4"] / first["seconds"]["4"]
    assert ratio == pytest.approx(second["steps"] / 100)
    best = found["schedule"]
    assert best["lower_bound_s"] <= best["makespan_s"]
    assert best["makespan_s"] == max(one["end_s"] for one in best["jobs"])
    assert best["late"] == []
    for other in found["alternatives"]:
        assert other["makespan_s"] >= best["makespan_s"]
    names = {best["policy"], *(one["policy"] for one in found["alternatives"])}
    assert names == {"shared", "in turn", "sharded"}


def test_a_job_takes_as_long_as_its_plan(
    capsys: pytest.CaptureFixture[str], two: Path
) -> None:
    found = shared(capsys, str(two), "--gpus", "2")
    alone = ["--model", "gpt-125m", "--gpus", "2", "--global-batch", "32", "--json"]
    assert main(alone, prog="plan") == 0
    plan = json.loads(capsys.readouterr().out)
    seconds = found["jobs"][0]["seconds"]["2"]
    assert seconds == pytest.approx(100 * plan["estimate"]["step_time_s"], rel=0.01)


def test_json_says_the_same_as_toml(
    capsys: pytest.CaptureFixture[str], two: Path
) -> None:
    import tomllib

    other = two.with_suffix(".json")
    other.write_text(json.dumps(tomllib.loads(TWO)))
    one, same = (shared(capsys, str(file), "--gpus", "2") for file in (two, other))
    assert one == same


def test_steps_may_be_written_as_tokens_are(
    capsys: pytest.CaptureFixture[str], two: Path
) -> None:
    two.write_text(TWO.replace("steps = 100", "steps = 1e2"))
    found = shared(capsys, str(two), "--gpus", "1")
    assert found["jobs"][0]["steps"] == 100
    assert {one["ranks"] for one in found["schedule"]["jobs"]} == {"0"}


def test_a_table_and_a_page_show_the_schedule(
    capsys: pytest.CaptureFixture[str], two: Path, tmp_path: Path
) -> None:
    pytest.importorskip("bokeh")
    page = tmp_path / "jobs.html"
    argv = ["--jobs", str(two), "--gpus", "2", "--report", str(page)]
    assert main(argv, prog="plan") == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "all 2 jobs done in" in said
    assert "the gap" in said
    html = page.read_text()
    assert "second: GPUs" in html
    assert "2 jobs on 2 GPUs of dgx-a100-80gb" in html


@pytest.mark.row(
    "H10",
    "models of 6 billion parameters, each on one commodity GPU: throughput over that "
    "one after another",
    expected="1.5 to 2",
)
def test_h10_six_billion_parameters_on_a_commodity_gpu(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, obtained: Obtained
) -> None:
    """Hydra trains models of 6 billion parameters on GPUs of 11 to 24 GiB, and gains
    50 to 100 % over one after another; here 12 of 6.7 billion on eight of 24 GiB."""
    file = tmp_path / "jobs.toml"
    one = '[[jobs]]\nmodel = "gpt-6.7b"\nsteps = 100\nglobal_batch = 32\n'
    file.write_text(one * 12)
    found = shared(capsys, str(file), "--gpus", "8", "--cluster", "rtx4090-8x")
    assert found["jobs"][0]["spilled_seconds"] is not None
    assert "1" not in found["jobs"][0]["seconds"]  # it does not fit unspilled
    best = found["schedule"]
    assert best["policy"] == "sharded"
    assert best["makespan_s"] <= 1.1 * best["lower_bound_s"]
    in_turn = next(o for o in found["alternatives"] if o["policy"] == "in turn")
    gain = in_turn["makespan_s"] / best["makespan_s"]
    obtained(f"{gain:.2f}")
    assert 1.5 <= gain <= 2.0


@pytest.mark.parametrize(
    ("text", "more", "said"),
    [
        ("[[jobs]\n", (), "is no TOML"),
        ("jobs = []\n", (), "has 0 jobs; give 1 to 200"),
        ('[[jobs]]\nmodel = "gpt-125m"\n', (), "has neither tokens nor steps; give"),
        (
            '[[jobs]]\nmodel = "gpt-125m"\nsteps = 1\ntokens = 5.0\n',
            (),
            "has both tokens and steps; give one of them",
        ),
        ('[[jobs]]\nmodel = "gpt-125m"\nstep = 1\n', (), "did you mean steps?"),
        ('[[jobs]]\nmodel = "gpt-125n"\nsteps = 1\n', (), "gpt-125m"),
        ('[[jobs]]\nmodel = "gpt-125m"\nsteps = -1\n', (), "has to be above 0"),
        (
            '[[jobs]]\nname = "a"\nmodel = "gpt-125m"\nsteps = 1\n' * 2,
            (),
            "has two jobs called a",
        ),
        ('[[jobs]]\nmodel = "gpt-125m"\ntokens = inf\n', (), "has to be above 0"),
        ("jobs = 5\n", (), "the file of jobs"),
        (TWO, ("--framework", "megatronn"), "megatronn"),
        (TWO, ("--tp", "3"), "tp"),
        (TWO, ("--model", "gpt-13b"), "--jobs has no use for --model"),
        (TWO, ("--explain",), "--jobs has no use for --explain"),
        (TWO, ("--gpus", "4,8"), "several numbers of --gpus"),
    ],
)
def test_a_wrong_question_is_one_line_and_exit_2(
    text: str,
    more: tuple[str, ...],
    said: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    file = tmp_path / "jobs.toml"
    file.write_text(text)
    gpus = () if "--gpus" in more else ("--gpus", "8")
    assert main(["--jobs", str(file), *gpus, *more], prog="plan") == 2
    caught = capsys.readouterr()
    assert said in caught.err
    assert caught.err.count("\n") == 1
    assert caught.out == ""


@pytest.mark.parametrize("offload", ["none", "auto"])
def test_what_fits_nowhere_is_a_no(
    offload: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    file = tmp_path / "jobs.toml"
    file.write_text('[[jobs]]\nmodel = "gpt-1t"\nsteps = 1\n')
    argv = ["--jobs", str(file), "--gpus", "1", "--offload", offload, "--json"]
    assert main(argv, prog="plan") == 1
    caught = capsys.readouterr()
    document = json.loads(caught.out)
    assert document["infeasible"]["constraint"] == "memory"
    assert "no layout of gpt-1t on any number of GPUs" in caught.err
