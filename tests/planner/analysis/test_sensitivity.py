"""What more would buy: never less than nothing, and named for what it is."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace

import pytest

from planner.analysis.sensitivity import AGAIN, ANEW, FASTER, sensitivities
from planner.api import solve
from planner.problem.problem import Problem
from planner.problem.solution import Solution
from planner.search.registry import SEARCHES
from planner.search.search import Limits
from profiles.units import GiB
from tests.support.problems import problem

Ask = Callable[..., tuple[int, str, str]]


def solved(posed: Problem) -> Solution:
    return solve(posed, SEARCHES["branch-and-bound"], Limits(runners_up=0))


@pytest.fixture(scope="module")
def posed() -> Problem:
    return problem("gpt-13b", 16, global_batch=64, limit_bytes=40 * GiB)


def test_more_never_costs_more(posed: Problem) -> None:
    best = solved(posed)
    rows = list(sensitivities(posed, best, solved))
    assert [row.how for row in rows] == [ANEW] * 2 + [AGAIN] * 4
    for row in rows:
        assert row.throughput >= -1e-9, row.change
    by_name = {row.change: row for row in rows}
    compute = by_name["10 % more compute"].throughput
    assert 0 < compute < FASTER - 1
    assert sum("bandwidth" in row.change for row in rows) == 3


def test_memory_is_planned_anew(posed: Problem) -> None:
    """With a GiB more, what is best of the larger machine is what is said."""
    best = solved(posed)
    row = next(sensitivities(posed, best, solved))
    share = posed.memory_limit_bytes / posed.machine.device.capacity_bytes
    limit = posed.memory_limit_bytes + share * GiB
    again = solved(replace(posed, memory_limit_bytes=limit))
    assert row.change == "1 GiB more memory"
    assert again.best is not None
    assert row.after.choice == again.best.choice
    assert row.after.estimate.step_time_s == again.value


def test_links_that_no_rank_speaks_over_are_left_out() -> None:
    posed = problem("gpt-tiny", 8)
    rows = list(sensitivities(posed, solved(posed), solved))
    named = [row.change for row in rows if "nvswitch" in row.change]
    assert len(named) == 1
    assert not any("infiniband" in row.change for row in rows)


def test_explain_adds_a_table_and_a_member(asking: Ask) -> None:
    argv = ("--model", "gpt-tiny", "--gpus", "2")
    plain = json.loads(asking(*argv, "--json")[1])
    code, out, _ = asking(*argv, "--explain", "--json")
    found = json.loads(out)
    assert code == 0
    assert "sensitivities" not in plain
    assert found["layout"] == plain["layout"]
    names = {entry["change"] for entry in found["sensitivities"]}
    assert {"1 GiB more memory", "twice the global batch"} < names
    for entry in found["sensitivities"]:
        assert entry["how"] in (ANEW, AGAIN)
        assert entry["layout"] is None or entry["how"] == ANEW
    assert "what if" in asking(*argv, "--explain")[1]
