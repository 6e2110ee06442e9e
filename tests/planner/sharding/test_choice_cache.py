"""A problem is solved once, and a stranger's file is believed as far as it is true."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from planner.sharding.choice_cache import cache_folder, cached, forget
from planner.sharding.choice_graph import ChoiceGraph, Chosen, Edge, Status
from planner.sharding.ilp import solve_choice

GRAPH = ChoiceGraph(
    nodes={"a": np.array([1.0, 3.0]), "b": np.array([2.0, 0.0])},
    edges=(Edge(source="a", target="b", costs=np.array([[0.0, 9.0], [9.0, 0.0]])),),
)


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    forget()
    yield
    forget()


class Solver:
    """Counts how often it is asked."""

    asked = 0

    def __call__(self, graph: ChoiceGraph) -> Chosen:
        self.asked += 1
        return solve_choice(graph)


def test_it_is_solved_once_a_process_and_once_a_folder(tmp_path: Path) -> None:
    solver = Solver()
    first = cached(GRAPH, solver, tmp_path)
    assert cached(GRAPH, solver, tmp_path) is first
    forget()
    assert cached(GRAPH, solver, tmp_path) == first
    assert solver.asked == 1
    forget()
    cached(GRAPH, solver, None)
    assert solver.asked == 2


@pytest.mark.parametrize(
    "change",
    [
        {"choice": {"a": 7, "b": 0}},
        {"choice": {"a": 0}},
        {"choice": {"a": "0", "b": 0}},
        {"value": 1.0},
        {"version": 2},
        {"kind": "layout"},
    ],
    ids=str,
)
def test_a_file_that_is_not_true_is_solved_again(
    tmp_path: Path, change: dict[str, Any]
) -> None:
    cached(GRAPH, solve_choice, tmp_path)
    (file,) = tmp_path.iterdir()
    file.write_text(json.dumps({**json.loads(file.read_text()), **change}))
    forget()
    solver = Solver()
    assert cached(GRAPH, solver, tmp_path).value == 3.0
    assert solver.asked == 1


@pytest.mark.parametrize("content", [b"", b"{", b"\xff\xfe", b"[1]", b"null"])
def test_a_broken_file_is_solved_again(tmp_path: Path, content: bytes) -> None:
    (tmp_path / f"{GRAPH.digest}.json").write_bytes(content)
    assert cached(GRAPH, solve_choice, tmp_path).status is Status.OPTIMAL


def test_a_folder_that_cannot_be_written_is_done_without(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert cached(GRAPH, solve_choice, tmp_path / "file" / "in").value == 3.0


def test_another_number_is_another_key() -> None:
    other = ChoiceGraph(nodes={**GRAPH.nodes, "a": np.array([1.0, 3.5])})
    assert other.digest != GRAPH.digest


def test_the_folder_is_where_caches_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    assert cache_folder() == Path.home() / ".cache" / "meshwright" / "intra-op"
    monkeypatch.setenv("XDG_CACHE_HOME", "/caches")
    assert cache_folder() == Path("/caches/meshwright/intra-op")
