"""Groups of layers cost what their layers do, and hold all of them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from costmodel.options.pins import Pins
from planner.analysis.largest import fits_somehow, last_true
from planner.api import solve
from planner.heterogeneous import stage_costs as stage_groups
from planner.heterogeneous.candidate_set import menus
from planner.heterogeneous.stage_costs import grouped_option, grouped_passes
from planner.problem.problem import Problem
from planner.problem.solution import Status
from planner.search.branch_and_bound import BranchAndBound
from planner.search.search import Limits
from planner.search.verify import check
from profiles.models.spec import DecoderSpec
from tests.support.islands import asked, joined


def test_a_group_costs_what_its_layers_do() -> None:
    menu = next(one for one in menus(asked(joined("dgx-a100-80gb"))) if one.options)
    for option, passes in zip(menu.options, menu.passes, strict=True):
        whole, two = grouped_option(option, 3), grouped_passes(passes, 3)
        held, stages = option.stages_bytes(2), passes.stages_s
        for place, (first, last) in enumerate(((0, 2), (3, 3))):
            assert whole.stages_s()[place, place] == pytest.approx(
                option.stages_s()[first, last]
            )
            assert whole.stages_bytes(2)[place, place] == pytest.approx(
                held[first, last]
            )
            for alone, together in zip(stages, two.stages_s, strict=True):
                assert together[place, place] == pytest.approx(alone[first, last])
        assert np.array_equal(two.layers, [3, 1])


def test_very_many_layers_are_cut_in_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    one = asked(joined("dgx-a100-80gb", "p3.16xlarge"), "gpt-mini")
    fine = solve(one, BranchAndBound(), Limits())
    monkeypatch.setattr(stage_groups, "MOST_CUT", 4)
    monkeypatch.setattr(stage_groups, "GROUPS", 4)
    found = solve(one, BranchAndBound(), Limits())
    check(one, found)
    assert found.best is not None
    assert fine.best is not None
    assert fine.value <= found.value * (1 + 1e-9)
    assert all(
        menu.passes[0].forward_s.size <= 4 for menu in menus(one) if menu.options
    )


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
