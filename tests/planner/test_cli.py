"""The command `plan`: documents, tables, files and exit codes."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

import pytest

from costmodel.cli import simulate
from planner.cli import plan
from planner.search.registry import SEARCHES
from tests.support.unlike import cluster_file

Ask = Callable[..., tuple[int, str, str]]
TINY = ("--model", "gpt-tiny", "--gpus", "4")
HEAVY = {"torch", "scipy", "networkx", "pulp", "highspy", "rich", "hypothesis"}


@pytest.fixture
def ask(capsys: pytest.CaptureFixture[str]) -> Ask:
    def asking(*argv: str) -> tuple[int, str, str]:
        code = plan.run(list(argv))
        return code, *capsys.readouterr()

    return asking


def answer(ask: Ask, *argv: str) -> dict[str, Any]:
    code, out, _ = ask(*argv, "--json")
    assert code == 0
    found: dict[str, Any] = json.loads(out)
    return found


@pytest.fixture(scope="module")
def thirteen() -> dict[str, Any]:
    """GPT-13B on 64 GPUs, and the best four beside the plan."""
    argv = ("--model", "gpt-13b", "--gpus", "64", "--top", "4", "--json")
    out = StringIO()
    with redirect_stdout(out):
        assert plan.run(list(argv)) == 0
    found: dict[str, Any] = json.loads(out.getvalue())
    return found


def test_the_document_has_every_member(thirteen: dict[str, Any]) -> None:
    found = thirteen
    assert found["job"] == {
        "model": "gpt-13b",
        "seq_len": 2048,
        "global_batch": 1536,
        "optimizer": "adamw",
    }
    assert (found["cluster"], found["gpus"]) == ("dgx-a100-80gb", 64)
    assert found["infeasible"] is None
    estimate, bound, search = found["estimate"], found["bound"], found["search"]
    assert found["layout"] == estimate["layout"]
    assert estimate["fits"]
    assert estimate["peak_memory_bytes"] <= estimate["capacity_bytes"]
    assert bound["objective"] == "step_time_s"
    assert (bound["space"], bound["complete"]) == ("uniform", True)
    assert bound["lower"] == bound["lower_step_time_s"] <= estimate["step_time_s"]
    ratio = bound["lower"] / estimate["step_time_s"]
    assert bound["gap"] == pytest.approx(1 - ratio, abs=1e-12)
    assert bound["gap"] <= 0.01
    assert (search["name"], search["status"]) == ("branch-and-bound", "optimal")
    spent = search["layouts_pruned"] + search["layouts_simulated"]
    assert spent == search["layouts_considered"]
    assert search["seconds"] > 0
    assert found["assumed"]["cluster"] == "dgx-a100-80gb"
    assert found["assumed"]["global_batch"] == 1536


def test_alternatives_are_slower_and_say_why(thirteen: dict[str, Any]) -> None:
    found = thirteen
    others = found["alternatives"]
    assert len(others) == 4
    seconds = [one["estimate"]["step_time_s"] for one in others]
    assert seconds == sorted(seconds)
    assert seconds[0] >= found["estimate"]["step_time_s"]
    assert all(one["estimate"]["fits"] and one["loses"] for one in others)
    assert len({str(one["layout"]["summary"]) for one in others}) == 4
    assert set(found["indistinguishable"]) <= set(range(4))


def test_what_is_recommended_fits_with_the_probability_asked_for(ask: Ask) -> None:
    """Of estimates of memory that are off by some per cent, half are too low."""
    where = ("--model", "gpt-13b", "--gpus", "8", "--global-batch", "64")
    tight = (*where, "--top", "2")
    likely, sure, even = (
        answer(ask, *tight, *more)
        for more in ((), ("--probability", "0.999"), ("--probability", "0.5"))
    )
    for found, asked in ((likely, 0.95), (sure, 0.999), (even, 0.5)):
        estimates = [
            found["estimate"],
            *(one["estimate"] for one in found["alternatives"]),
        ]
        chances = [one["interval"]["probability_fits"] for one in estimates]
        assert min(chances) >= asked - 1e-9
    seconds = [one["estimate"]["step_time_s"] for one in (even, likely, sure)]
    assert seconds == sorted(seconds)
    assert likely["assumed"]["probability"] == 0.95


def test_no_alternatives_when_none_are_asked_for(ask: Ask) -> None:
    found = answer(ask, *TINY, "--top", "0")
    assert (found["alternatives"], found["indistinguishable"]) == ([], [])


def test_pins_are_kept(ask: Ask) -> None:
    pins = ("--tp", "2", "--micro-batch", "2", "--zero", "1", "--recompute", "full")
    found = answer(ask, *TINY, *pins, "--no-sequence-parallel")
    summary = found["layout"]["summary"]
    assert (summary["tp"], summary["micro_batch"], summary["zero"]) == (2, 2, 1)
    plans = found["layout"]["stages"][0]["layer_plans"]
    assert {item["sharding"] for item in plans} == {"megatron"}
    assert any(item["retention"] for item in plans)


def test_a_raised_batch_is_a_warning_and_assumed(ask: Ask) -> None:
    code, out, err = ask("--model", "gpt-13b", "--gpus", "7", "--json")
    found = json.loads(out)
    assert code == 0
    assert err.count("\n") == 1
    assert "warning: global batch raised from 1536 to 1540" in err
    assert found["warnings"] == [err.partition("warning: ")[2].strip()]
    assert found["job"]["global_batch"] == found["assumed"]["global_batch"] == 1540


@pytest.mark.parametrize("columns", [80, 100])
def test_the_table_fits_a_screen(
    ask: Ask, monkeypatch: pytest.MonkeyPatch, columns: int
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    for most, more in ((24, ()), (46, ("--details",))):
        code, out, err = ask("--model", "gpt-13b", "--gpus", "64", *more)
        assert (code, err) == (0, "")
        lines = out.splitlines()
        assert lines[0].startswith("Train gpt-13b on 64 × A100-SXM-80GB with pp 2")
        assert max(map(len, lines)) <= columns
        assert len(lines) <= most
        for word in ("step time", "MFU", "bottleneck", "gap 0", "runners-up"):
            assert word in out
        assert "probability" in out
        assert ("optimality" in out) == bool(more)


SIXTEEN = ("--model", "gpt-13b", "--gpus", "16", "--global-batch", "64", "--top", "0")


@pytest.fixture(scope="module")
def fastest() -> float:
    """Seconds of a step of the fastest layout on sixteen GPUs."""
    out = StringIO()
    with redirect_stdout(out):
        assert plan.run([*SIXTEEN, "--json"]) == 0
    seconds: float = json.loads(out.getvalue())["estimate"]["step_time_s"]
    return seconds


@pytest.mark.parametrize("objective", ["cost", "memory", "time-to-train"])
def test_other_objectives_prove_their_own_value(
    ask: Ask, objective: str, fastest: float
) -> None:
    found = answer(ask, *SIXTEEN, "--objective", objective)
    bound, estimate = found["bound"], found["estimate"]
    assert bound["gap"] <= 0.01
    if objective == "memory":
        assert bound["objective"] == "peak_needed_bytes"
        assert bound["value"] == estimate["peak_needed_bytes"]
        assert bound["lower_step_time_s"] < estimate["step_time_s"]
    else:
        assert estimate["step_time_s"] == fastest
    assert ask(*TINY, "--objective", objective)[0] == 0


def test_the_layout_file_gives_the_same_estimate(
    ask: Ask, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "layout.json"
    found = answer(ask, *TINY, "--out", str(file))
    assert json.loads(file.read_text())["layout"] == found["layout"]
    assert simulate.run([str(file), "--json"]) == 0
    again = json.loads(capsys.readouterr().out)
    assert again["step_time_s"] == found["estimate"]["step_time_s"]
    assert again["memory"] == found["estimate"]["memory"]


def test_a_model_file_is_spelled_out(ask: Ask, tmp_path: Path) -> None:
    shape = {"layers": 2, "hidden": 64, "heads": 4, "vocab": 512, "seq_len": 128}
    file = tmp_path / "mine.json"
    file.write_text(json.dumps(shape))
    found = answer(ask, "--model", str(file), "--gpus", "2", "--global-batch", "4")
    assert found["job"]["model"]["hidden"] == 64


def test_nothing_fits_is_exit_1_with_the_reason(ask: Ask) -> None:
    argv = ("--model", "gpt-13b", "--gpus", "1", "--global-batch", "8")
    code, out, err = ask(*argv, "--json")
    found = json.loads(out)
    assert code == 1
    assert found["layout"] is found["estimate"] is None
    assert found["infeasible"]["constraint"].startswith("memory: ")
    assert "--offload optimizer" in found["infeasible"]["nearest"]
    options = [one["option"] for one in found["infeasible"]["changes"]]
    assert any("--gpus" in option for option in options)
    assert found["search"]["status"] == "infeasible"
    assert found["job"]["model"] == "gpt-13b"
    assert err.startswith("plan: no layout: memory: ")


def test_nothing_divides_is_exit_1(ask: Ask) -> None:
    argv = ("--model", "gpt-tiny", "--gpus", "11", "--global-batch", "3")
    code, out, _ = ask(*argv, "--json")
    found = json.loads(out)
    assert (code, found["layout"]) == (1, None)
    assert found["infeasible"]["constraint"].startswith("divisibility: ")
    assert "--global-batch 11" in found["infeasible"]["nearest"]


def test_no_time_is_exit_1(ask: Ask) -> None:
    short = ("--search", "exhaustive", "--time-limit", "0.000001")
    code, out, err = ask(*TINY, *short, "--json")
    assert (code, json.loads(out)["layout"]) == (1, None)
    assert "--time-limit" in err


def test_no_time_gives_some_layout_of_the_default_search(ask: Ask) -> None:
    found = answer(ask, *TINY, "--time-limit", "0.000001")
    bound = found["bound"]
    assert (bound["complete"], bound["lower"], bound["gap"]) == (False, 0.0, 1.0)
    assert found["search"]["status"] == "feasible"


def test_a_time_limit_gives_the_best_so_far_with_its_gap(ask: Ask) -> None:
    argv = (*TINY, "--search", "exhaustive", "--time-limit", "1.5")
    found = answer(ask, *argv, "--global-batch", "512")
    bound = found["bound"]
    assert (bound["complete"], bound["lower"], bound["gap"]) == (False, 0.0, 1.0)
    assert found["search"]["status"] == "feasible"
    assert found["search"]["seconds"] < 30


def test_searches_are_compared(ask: Ask) -> None:
    pins = ("--zero", "1", "--recompute", "none", "--no-sequence-parallel")
    argv = ("--model", "gpt-tiny", "--gpus", "2", *pins, "--compare-searches")
    found = answer(ask, *argv)
    each = {one["name"]: one for one in found["searches"]}
    assert each.keys() == SEARCHES.keys()
    both = [each[name] for name in ("branch-and-bound", "exhaustive")]
    values = [one["bound"]["value"] for one in both]
    assert values[0] == pytest.approx(values[1], rel=1e-9)
    assert len({one["layouts_considered"] for one in both}) == 1
    found_by = {name: one["bound"]["value"] for name, one in each.items()}
    assert min(found_by.values()) >= values[0] * (1 - 1e-9)
    table = ask(*argv, "--details")[1]
    assert "exhaustive" in table
    assert "simulated" in table


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ("--model gpt-tiny --gpus 4 --global-batch 6", "looks at no layout at all"),
        (
            "--model gpt-13b --gpus 8 --micro-batch 8 --recompute none",
            "layouts, none of which fits",
        ),
    ],
)
def test_a_search_that_finds_nothing_says_so(ask: Ask, words: str, reason: str) -> None:
    code, out, err = ask(*words.split(), "--search", "fsdp")
    assert (code, out) == (1, "")
    assert "no layout: search: fsdp looks at" in err
    assert reason in err
    assert "--search branch-and-bound: " in err


def test_a_search_that_proves_nothing_says_so(ask: Ask) -> None:
    code, out, _ = ask(*TINY, "--search", "megatron", "--details")
    assert code == 0
    assert "bounds no other" in " ".join(out.split())


def test_other_searches_plan_for_the_slowest_island(ask: Ask, tmp_path: Path) -> None:
    unlike = cluster_file(tmp_path, "dgx-a100-80gb", "dgx-h100")
    argv = ("--model", "gpt-tiny", "--gpus", "16", "--cluster", unlike, "--cp", "1")
    code, out, err = ask(*argv, "--search", "exhaustive")
    assert (code, out) == (2, "")
    assert "the cluster joins 2" in err
    assert "megatron" in err
    batch = ("--global-batch", "16")
    ours = answer(ask, *argv, *batch)
    for name in ("megatron", "pipedream", "fsdp"):
        theirs = answer(ask, *argv, *batch, "--search", name)
        assert theirs["search"]["name"] == name
        assert theirs["bound"]["value"] >= ours["bound"]["value"]
    lean = answer(ask, *argv, "--global-batch", "8", "--objective", "memory")
    assert lean["bound"]["objective"] == "peak_needed_bytes"
    assert lean["bound"]["value"] == lean["estimate"]["peak_needed_bytes"]


@pytest.mark.parametrize(
    ("argv", "reason"),
    [
        (("--model", "gpt-13c", "--gpus", "64"), "did you mean"),
        (("--gpus", "64"), "--model is missing"),
        (("--model", "gpt-13b"), "--gpus is missing"),
        (("--model", "gpt-13b", "--gpus", "0"), "--gpus"),
        (("--model", "gpt-13b", "--gpus", "64", "--tp", "3"), "does not divide"),
        (("--model", "gpt-13b", "--gpus", "64", "--cluster", "dgx"), "cluster"),
        ((*TINY, "--search", "simplex"), "unknown search"),
        ((*TINY, "--objective", "beauty"), "throughput, cost, memory"),
        ((*TINY, "--any-stage", *["--pp", "3", "--schedule", "gpipe"]), "gpipe"),
        ((*TINY, "--profile", "samples.json"), "cannot be read"),
        ((*TINY, "--time-limit", "0"), "--time-limit"),
        ((*TINY, "--top", "-1"), "--top"),
        ((*TINY, "--probability", "0.4"), "--probability"),
        ((*TINY, "--probability", "1"), "--probability"),
        ((*TINY, "--offload-to", "nvme"), "has no effect without --offload"),
        ((*TINY, "--offload", "parameters", "--zero", "1"), "--zero 3"),
        ((*TINY, "--out", "no/such/folder/layout.json"), "no/such/folder"),
    ],
)
def test_a_wrong_question_is_exit_2_in_one_line(
    ask: Ask, argv: tuple[str, ...], reason: str
) -> None:
    code, out, err = ask(*argv, "--json")
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert reason in err


def test_help_has_an_example(ask: Ask) -> None:
    code, out, _ = ask("--help")
    assert code == 0
    assert "plan --model gpt-13b --gpus 64" in out
    assert "--any-stage" in out


def test_a_plan_loads_nothing_heavy(
    run: Callable[..., subprocess.CompletedProcess[str]],
) -> None:
    script = (
        "import sys\n"
        "from planner.__main__ import main\n"
        "code = main(['--model', 'gpt-tiny', '--gpus', '2', '--json'])\n"
        "print(*sys.modules, file=sys.stderr)\n"
        "sys.exit(code)"
    )
    done = run("python", "-c", script)
    assert done.returncode == 0, done.stderr
    loaded = {name.partition(".")[0] for name in done.stderr.split()}
    assert loaded & HEAVY == set()
    assert json.loads(done.stdout)["layout"]
