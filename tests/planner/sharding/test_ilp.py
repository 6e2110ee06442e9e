"""The solver behind the integer program: it is not believed, and it never crashes."""

from __future__ import annotations

import sys
from math import inf
from typing import Any

import numpy as np
import pulp
import pytest

from planner.sharding.choice_graph import ChoiceGraph, Edge, Limit, Status
from planner.sharding.ilp import solve_choice


def graph(room: float = 2.0) -> ChoiceGraph:
    """Three nodes, whose second options cost less and take room; two like the same."""
    costs = {"a": [3.0, 0.0], "b": [2.0, 0.0], "c": [5.0, 0.0]}
    unlike = Edge(source="a", target="c", costs=np.array([[0.0, 0.5], [0.5, 0.0]]))
    uses = {name: np.array([0.0, 1.0]) for name in costs}
    return ChoiceGraph(
        nodes={name: np.array(each) for name, each in costs.items()},
        edges=(unlike,),
        limits=(Limit(name="room", capacity=room, uses=uses),),
    )


def test_an_optimum_is_its_own_bound() -> None:
    found = solve_choice(graph())
    assert found.status is Status.OPTIMAL
    assert found.choice == {"a": 1, "b": 0, "c": 1}
    assert found.value == found.lower == 2.0


def test_no_room_takes_what_needs_none() -> None:
    assert solve_choice(graph(room=0.0)).choice == {"a": 0, "b": 0, "c": 0}


def test_a_program_without_a_solution_says_so() -> None:
    nodes = graph().nodes
    always = {name: np.ones(2) for name in nodes}
    less = Limit(name="all", capacity=2.0, uses=always)
    found = solve_choice(ChoiceGraph(nodes=nodes, limits=(less,)))
    assert found.status is Status.INFEASIBLE
    assert (found.value, found.choice) == (inf, {})


def test_a_solver_that_breaks_is_a_status(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any, **__: Any) -> None:
        raise RuntimeError("out of memory")

    monkeypatch.setattr(pulp.LpProblem, "solve", broken)
    found = solve_choice(graph())
    assert found.status is Status.FAILED
    assert found.reason == "RuntimeError: out of memory"


def test_a_solver_that_is_not_there_is_a_status(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "pulp", None)
    found = solve_choice(graph())
    assert found.status is Status.FAILED
    assert "pip install pulp highspy" in found.reason


@pytest.mark.parametrize(("first", "second"), [(0.0, 1.0), (1.0, 1.0), (None, None)])
def test_a_wrong_answer_is_not_believed(
    monkeypatch: pytest.MonkeyPatch, first: float | None, second: float | None
) -> None:
    """More than there is room for, two options of a node, or none."""

    def claimed(program: Any, _: Any) -> None:
        for variable in program.variables():
            variable.varValue = second if variable.name.endswith("_1") else first
        program.status = pulp.LpStatusOptimal
        program.sol_status = pulp.LpSolutionOptimal

    monkeypatch.setattr(pulp.LpProblem, "solve", claimed)
    assert solve_choice(graph()).status is Status.FAILED


def test_out_of_time_is_a_choice_with_a_bound_or_none() -> None:
    found = solve_choice(graph(), time_limit_s=0.0)
    assert found.status is not Status.INFEASIBLE
    assert found.lower <= found.value


def test_another_solver_answers_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pulp.HiGHS, "available", lambda _: False)
    found = solve_choice(graph())
    assert (found.status, found.value) == (Status.OPTIMAL, 2.0)
