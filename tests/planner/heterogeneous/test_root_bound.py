"""What is known before anything is priced is a bound, and worth something."""

from __future__ import annotations

from dataclasses import replace

import pytest

from costmodel.options.pins import Pins
from planner.api import solve
from planner.heterogeneous.bound import root_bound_s
from planner.heterogeneous.candidate_set import menus
from planner.problem.problem import Problem
from planner.search.branch_and_bound import BranchAndBound
from planner.search.search import Limits
from tests.support.islands import asked, joined
from tests.support.problems import on, problem

TWO = "dgx-a100-80gb", "p3.16xlarge"


def posed() -> list[Problem]:
    return [
        asked(joined(*TWO), "gpt-1.3b", 32),
        asked(joined(*TWO[::-1]), "gpt-2.7b", 64),
        problem("gpt-125m", 8, where=on("dgx-h100"), global_batch=64),
        replace(
            problem("deepseek-v2-lite", 8, where=on("dgx-h100"), global_batch=16),
            precision="fp8",
        ),
        problem("llama3-8b", 4, where=on("dgx-a100-80gb", "fsdp2"), pins=Pins(tp=2)),
    ]


@pytest.mark.parametrize("number", range(5))
def test_no_menu_goes_below(number: int) -> None:
    one = posed()[number]
    least = min(menu.lower_s for menu in menus(one))
    assert 0.1 * least < root_bound_s(one) <= least


def test_a_search_without_time_knows_it() -> None:
    one = posed()[0]
    found = solve(one, BranchAndBound(), Limits(time_limit_s=0.0))
    assert not found.complete
    assert found.lower == pytest.approx(root_bound_s(one))
