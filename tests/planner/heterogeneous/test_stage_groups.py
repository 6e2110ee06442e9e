"""Groups of layers cost what their layers do, and hold all of them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from costmodel.options.pins import Pins
from planner.analysis.largest import fits_somehow, last_true
from planner.api import solve
from planner.heterogeneous import candidate_set
from planner.heterogeneous.candidate_set import menus
from planner.problem.problem import Problem
from planner.problem.solution import Status
from planner.search.branch_and_bound import BranchAndBound
from planner.search.search import Limits
from planner.search.verify import check
from profiles.models.spec import DecoderSpec
from tests.support.islands import asked, joined


def test_a_group_costs_what_its_layers_do() -> None:
    menu = next(menus(asked(joined("dgx-a100-80gb"))))
    for option in menu.options:
        two, held, stages = (
            option.of_groups(3),
            option.stages_bytes(2),
            option.stages_s(),
        )
        for place, (first, last) in enumerate(((0, 2), (3, 3))):
            seconds = option.seconds[first : last + 1].sum()
            assert two.seconds[place] == pytest.approx(seconds)
            assert two.stages_bytes(2)[place, place] == pytest.approx(held[first, last])
            assert two.stages_s()[:, place, place] == pytest.approx(
                stages[:, first, last]
            )


def test_very_many_layers_are_cut_in_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    one = asked(joined("dgx-a100-80gb", "p3.16xlarge"), "gpt-mini")
    fine = solve(one, BranchAndBound(), Limits())
    monkeypatch.setattr(candidate_set, "MOST_CUT", 4)
    monkeypatch.setattr(candidate_set, "GROUPS", 4)
    found = solve(one, BranchAndBound(), Limits())
    check(one, found)
    assert found.best is not None
    assert fine.best is not None
    assert fine.value <= found.value * (1 + 1e-9)
    assert all(menu.stages.layers <= 4 for menu in menus(one))


def test_the_bound_speaks_of_all_cuts_where_groups_do_not_fit() -> None:
    """What fits by cuts between any layers alone is not called the best of them."""
    posed = asked(joined("dgx-a100-80gb", "p3.16xlarge"), "gpt-2.7b", 8)
    job, pins = posed.job, Pins(micro_batches=8)
    whole = job.spec
    assert isinstance(whole, DecoderSpec)

    def of(layers: int) -> Problem:
        spec = replace(whole, layers=layers)
        return replace(posed, job=replace(job, spec=spec), pins=pins)

    most = last_true(lambda layers: fits_somehow(of(layers)), 500, 1000)
    found = solve(of(most), BranchAndBound(), Limits())
    check(of(most), found)
    assert found.best is not None
    assert found.status is Status.FEASIBLE
    assert found.counters.simulated == 0, "no groups fit"
    assert 0 < found.lower < found.value
