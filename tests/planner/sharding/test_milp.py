"""A solver behind named rows: what it says is checked, and it never crashes."""

from __future__ import annotations

import sys
from math import inf
from typing import Any

import pulp
import pytest

from planner.sharding.milp import Milp, MilpStatus


def knapsack(room: float = 2.0) -> Milp:
    model = Milp(name="knapsack")
    worth = {"a": 3.0, "b": 2.0, "c": 5.0}
    terms = [(model.binary(name, cost=-value), 1.0) for name, value in worth.items()]
    model.require("room", terms, at_most=room)
    return model


def test_an_optimum_has_names_and_its_own_bound() -> None:
    found = knapsack().solve()
    assert found.status is MilpStatus.OPTIMAL
    assert found.values == {"a": 1.0, "b": 0.0, "c": 1.0}
    assert found.value == found.bound == -8.0


def test_rows_bound_from_both_sides() -> None:
    model = Milp(name="between")
    x = model.continuous("x", cost=1.0, upper=9.0)
    model.require("at least two", [(x, 1.0)], at_least=2.0, at_most=4.0)
    assert model.solve().value == pytest.approx(2.0)
    assert model.broken({"x": 5.0}) == ["at least two"]


def test_a_program_without_a_solution_says_so() -> None:
    model = knapsack()
    model.require("all", [(name, 1.0) for name in "abc"], at_least=3.0)
    found = model.solve()
    assert found.status is MilpStatus.INFEASIBLE
    assert found.value == inf
    assert not found.values


def test_a_solver_that_breaks_is_a_status(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any, **__: Any) -> None:
        raise RuntimeError("out of memory")

    monkeypatch.setattr(pulp.LpProblem, "solve", broken)
    found = knapsack().solve()
    assert found.status is MilpStatus.FAILED
    assert found.reason == "RuntimeError: out of memory"


def test_a_solver_that_is_not_there_is_a_status(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "pulp", None)
    found = knapsack().solve()
    assert found.status is MilpStatus.FAILED
    assert "pip install pulp highspy" in found.reason


def test_a_wrong_answer_is_not_believed(monkeypatch: pytest.MonkeyPatch) -> None:
    def all_of_it(program: Any, _: Any) -> None:
        for variable in program.variables():
            variable.varValue = 1.0
        program.status = pulp.LpStatusOptimal
        program.sol_status = pulp.LpSolutionOptimal

    monkeypatch.setattr(pulp.LpProblem, "solve", all_of_it)
    assert knapsack(room=2.0).solve().status is MilpStatus.FAILED
    assert knapsack(room=3.0).solve().status is MilpStatus.OPTIMAL


def test_out_of_time_is_a_choice_with_a_bound_or_none() -> None:
    found = knapsack().solve(time_limit_s=0.0)
    assert found.status is not MilpStatus.INFEASIBLE
    assert found.bound <= found.value


def test_another_solver_answers_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pulp.HiGHS, "available", lambda _: False)
    found = knapsack().solve()
    assert (found.status, found.value) == (MilpStatus.OPTIMAL, -8.0)
