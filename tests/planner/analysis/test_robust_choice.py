"""Near-ties are decided by their bad case, and the certificate says what that cost."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from io import StringIO

import pytest
from hypothesis import given, settings

from costmodel.machine.coefficients import load_coefficients
from planner.analysis.explain import indistinguishable
from planner.analysis.robust_choice import LARGEST_GAP, prefer, recommended, why_chosen
from planner.analysis.uncertainty import (
    DEVICE,
    FAR,
    INDISTINGUISHABLE,
    NEAR,
    UNFITTED,
    bad_case_s,
    error_of,
    errors_of,
    ratio_half,
    shares,
)
from planner.problem.problem import Candidate, Objective, Problem
from planner.problem.solution import Solution, Status
from planner.report.tables import plan_view
from planner.search.registry import SEARCHES
from planner.search.search import Limits
from profiles.units import GiB
from tests.support.problems import on, problem, small_problems

SEARCH = SEARCHES["branch-and-bound"]
STEADY = {"compute": 1.0}
SHAKY = {"compute": 0.2, "data_comm": 0.8}


@pytest.fixture(scope="module")
def posed() -> Problem:
    return problem("gpt-13b", 16, global_batch=64, limit_bytes=60 * GiB)


@pytest.fixture(scope="module")
def solved(posed: Problem) -> Solution:
    return SEARCH.solve(posed, Limits())


def priced(one: Candidate, step_s: float, parts: Mapping[str, float]) -> Candidate:
    """*one* at another price, its parts given as shares of it."""
    nothing = dict.fromkeys(one.estimate.breakdown_s, 0.0)
    breakdown = nothing | {name: share * step_s for name, share in parts.items()}
    estimate = replace(one.estimate, step_time_s=step_s, breakdown_s=breakdown)
    return replace(one, estimate=estimate)


def tie(solved: Solution, other_s: float, lower: float = 1.0) -> Solution:
    """A step of 1 s that hangs on the network, and one of *other_s* that does not."""
    assert solved.best is not None
    best = priced(solved.best, 1.0, SHAKY)
    other = priced(solved.runners_up[0], other_s, STEADY)
    return replace(solved, best=best, value=1.0, lower=lower, runners_up=(other,))


def test_a_near_tie_with_a_better_bad_case_is_chosen(
    posed: Problem, solved: Solution
) -> None:
    near = tie(solved, 1.004)
    assert near.best is not None
    found = prefer(posed, near)
    assert found.best is near.runners_up[0]
    assert found.instead_of is near.best
    assert found.runners_up == (near.best,)
    assert (found.value, found.status) == (1.004, Status.FEASIBLE)
    assert 0 < found.gap <= LARGEST_GAP
    assert bad_case_s(posed, near.runners_up[0]) < bad_case_s(posed, near.best)
    said = why_chosen(posed, found)
    assert said is not None
    assert "0.4% faster by estimate, because more robust: its P90 step is " in said
    assert ": it depends less on " in said
    assert FAR in said or NEAR in said
    assert indistinguishable(posed, found) == [0]


@pytest.mark.parametrize(
    ("other_s", "lower"), [(1.02, 1.0), (1.3, 1.0), (1.004, 0.99), (1.004, 0.5)]
)
def test_no_more_is_given_up_than_the_gap_allows(
    posed: Problem, solved: Solution, other_s: float, lower: float
) -> None:
    near = tie(solved, other_s, lower)
    found = prefer(posed, near)
    assert found is near
    assert why_chosen(posed, found) is None


def test_a_steady_best_stays(posed: Problem, solved: Solution) -> None:
    near = tie(solved, 1.004)
    assert near.best is not None
    steady = replace(near, best=priced(near.best, 1.0, STEADY))
    assert prefer(posed, steady) is steady
    memory = replace(posed, objective=Objective.MEMORY)
    assert prefer(memory, near) is near


def test_what_hardly_fits_is_the_worse_case(posed: Problem, solved: Solution) -> None:
    near = tie(solved, 1.002)
    assert near.best is not None
    held = near.best.estimate.memory
    shaky = tuple(replace(one, spread=1e3 * one.spread) for one in held)
    risky = replace(near.best, estimate=replace(near.best.estimate, memory=shaky))
    found = prefer(posed, replace(near, best=risky))
    assert found.instead_of is risky
    assert "probability" in (why_chosen(posed, found) or "")


def test_errors_that_both_share_cancel(posed: Problem, solved: Solution) -> None:
    near = tie(solved, 1.0)
    assert near.best is not None
    other = near.runners_up[0]
    assert ratio_half(posed, near.best, near.best) == INDISTINGUISHABLE
    assert ratio_half(posed, near.best, other) > INDISTINGUISHABLE
    assert ratio_half(posed, near.best, other) == ratio_half(posed, other, near.best)
    for one in (near.best, *solved.runners_up):
        assert sum(shares(posed, one).values()) == pytest.approx(1)


def test_errors_are_those_of_the_fit() -> None:
    fitted = load_coefficients()
    errors = errors_of(on("dgx-a100-80gb"))
    by_name = {item.name: item.error for item in fitted.entries}
    assert errors[DEVICE] == by_name["product/a100-sxm-80gb"]
    assert errors[FAR] == by_name["link/infiniband/ampere"]
    assert error_of(fitted, "product", "nobody's") >= max(
        item.spread for item in fitted.entries if item.name.startswith("product/")
    )
    assert error_of(fitted, "nothing") == UNFITTED


@settings(max_examples=10)
@given(small_problems())
def test_recommendations_keep_the_gap(posed: Problem) -> None:
    exact = SEARCH.solve(posed, Limits())
    found = recommended(posed, exact, 1)
    if exact.best is None or found.best is None:
        assert found.best is exact.best is None
        return
    assert found.lower == exact.lower
    assert found.gap <= max(LARGEST_GAP, exact.gap)
    assert posed.fits(found.best)
    assert len(found.runners_up) <= 1


def test_the_choice_is_shown(posed: Problem, solved: Solution) -> None:
    from rich.console import Console

    found = prefer(posed, tie(solved, 1.004))
    screen = Console(width=100, file=StringIO())
    screen.print(plan_view(posed, found, {}))
    shown = " ".join(screen.file.getvalue().split())  # type: ignore[attr-defined]
    assert "chosen over" in shown
    assert "faster by estimate" in shown
