"""The layouts worth measuring first: ties, then unlike ones; each in its file."""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import combinations
from pathlib import Path

import pytest

from costmodel.cli import simulate
from planner.analysis.explain import indistinguishable
from planner.analysis.probe import apart, probes
from planner.problem.problem import Candidate
from planner.search.registry import SEARCHES
from planner.search.search import Limits
from tests.support.problems import problem
from tests.support.unlike import cluster_file

Ask = Callable[..., tuple[int, str, str]]
TINY = ("--model", "gpt-tiny", "--gpus", "4")


def test_the_recommendation_first_then_what_cannot_be_told_from_it() -> None:
    posed = problem("gpt-mini", 8)
    solution = SEARCHES["branch-and-bound"].solve(posed, Limits(runners_up=10))
    alike = [solution.runners_up[index] for index in indistinguishable(posed, solution)]
    found = probes(posed, solution, 5)
    assert found[0] is solution.best
    ties = min(len(alike), 4)
    assert found[1 : 1 + ties] == alike[:ties]
    assert len({one.choice for one in found}) == len(found) == 5


def test_the_rest_is_as_unlike_as_can_be() -> None:
    posed = problem("gpt-13b", 16, global_batch=64)
    solution = SEARCHES["branch-and-bound"].solve(posed, Limits(runners_up=8))
    ties = len(indistinguishable(posed, solution))
    *before, last = probes(posed, solution, ties + 2)
    assert last in solution.runners_up
    others = [one for one in solution.runners_up if one not in (*before, last)]

    def distance(one: Candidate) -> float:
        return min(apart(one.choice, other.choice) for other in before)

    assert distance(last) >= max(map(distance, others))


def test_the_files_are_beside_out(
    asking: Ask, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "best.json"
    code, text, _ = asking(
        *TINY, "--probe", "3", "--top", "1", "--out", str(out), "--json"
    )
    found = json.loads(text)
    assert code == 0
    assert len(found["alternatives"]) == 1
    files = [Path(entry["file"]) for entry in found["probe"]]
    assert files == [tmp_path / f"probe-{number}.json" for number in (1, 2, 3)]
    layouts = [json.loads(file.read_text())["layout"] for file in files]
    assert layouts[0] == found["layout"] == json.loads(out.read_text())["layout"]
    assert len({str(one) for one in layouts}) == 3
    assert simulate.run([str(files[1]), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["fits"]


def test_without_out_they_are_here(
    asking: Ask, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    code, out, _ = asking(*TINY, "--probe", "2")
    assert code == 0
    assert sorted(file.name for file in tmp_path.iterdir()) == [
        "probe-1.json",
        "probe-2.json",
    ]
    assert "the recommendation" in " ".join(out.split())


def test_fewer_are_written_where_there_are_no_more(asking: Ask, tmp_path: Path) -> None:
    pins = ("--zero", "0", "--recompute", "none", "--micro-batch", "1")
    argv = ("--model", "gpt-tiny", "--gpus", "1", *pins, "--probe", "9")
    code, out, _ = asking(*argv, "--out", str(tmp_path / "layout.json"))
    assert code == 0
    written = list(tmp_path.glob("probe-*.json"))
    assert 1 <= len(written) < 9
    assert f"no more than these {len(written)}" in " ".join(out.split())


def test_unlike_islands_are_probed(asking: Ask, tmp_path: Path) -> None:
    """Layouts of stages that differ in more than their cuts."""
    where = cluster_file(tmp_path, "dgx-a100-80gb", "dgx-h100")
    argv = ("--model", "gpt-mini", "--gpus", "16", "--cluster", where)
    out = tmp_path / "best.json"
    more = ("--global-batch", "8", "--probe", "3", "--out", str(out), "--json")
    code, text, _ = asking(*argv, *more)
    found = json.loads(text)
    assert code == 0
    files = [Path(entry["file"]) for entry in found["probe"]]
    assert len(files) == 3
    first, *others = (json.loads(file.read_text())["layout"] for file in files)
    assert first == found["layout"]
    shapes = [
        (one["micro_batches"], [stage["mesh"] for stage in one["stages"]])
        for one in (first, *others)
    ]
    assert all(one != other for one, other in combinations(shapes, 2))
    assert simulate.run([str(files[1]), "--json"]) == 0


@pytest.mark.parametrize("count", ["0", "-1", "101", "some"])
def test_impossible_counts_are_refused(asking: Ask, count: str) -> None:
    code, out, err = asking(*TINY, "--probe", count)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert "--probe" in err
