"""Stages of unlike meshes: never worse than alike ones, within the bound, and real."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache
from math import inf
from pathlib import Path

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from costmodel.layout.strategy import Uniform
from costmodel.options.pins import Pins
from costmodel.options.training_run import RunOptions
from costmodel.report.tables import layout_words
from costmodel.simulation.estimator import estimate
from costmodel.simulation.layout_files import write_layout
from costmodel.simulation.serialization import parse_file
from planner.analysis.infeasibility import diagnose
from planner.analysis.scaling import Sized
from planner.analysis.uncertainty import level_of
from planner.api import solve, widen
from planner.heterogeneous.candidate_set import Menu, menus
from planner.heterogeneous.search import (
    alike_alone,
    require_possible,
    stages_of_any,
    widened,
)
from planner.options import Around
from planner.problem import regions as stage_places
from planner.problem.pin_checks import require_consistent
from planner.problem.pin_checks import require_possible as require_possible_pins
from planner.problem.problem import Problem, Staged
from planner.problem.question import Posed
from planner.problem.solution import Solution
from planner.report.extras import require_answerable
from planner.report.scaling import sizes_table
from planner.search.branch_and_bound import BranchAndBound
from planner.search.registry import SEARCHES
from planner.search.search import Clock, Limits
from planner.search.verify import check
from profiles.errors import Contradiction, Unsupported
from tests.support.problems import local, on, problem


def both(asked: Problem) -> tuple[Solution, Solution]:
    """The best of alike stages, and of any."""
    alike = BranchAndBound().solve(asked, Limits())
    return alike, widen(asked, alike, Limits())


@settings(max_examples=6, deadline=None)
@given(
    gpus=st.sampled_from([2, 3, 4, 6]),
    where=st.sampled_from(["dgx-a100-80gb", "p3.16xlarge"]),
    tight=st.sampled_from([None, 1.0, 0.8]),
)
def test_never_worse_and_never_below_the_bound(
    gpus: int, where: str, tight: float | None
) -> None:
    asked = problem(gpus=gpus, where=on(where), global_batch=12)
    if tight is not None:
        free = BranchAndBound().solve(asked, Limits())
        assert free.best is not None
        peak = free.best.estimate.peak_needed_bytes
        asked = replace(asked, memory_limit_bytes=peak * tight)
    alike, any_stage = both(asked)
    assume(alike.best is not None)
    assert any_stage.space == "any-stage"
    assert any_stage.value <= alike.value
    assert any_stage.lower <= min(any_stage.value, alike.lower)
    assert isinstance(any_stage.best, Staged) == (any_stage.value < alike.value)


@cache
def menus_of(gpus: int) -> list[Menu]:
    return list(menus(problem(gpus=gpus, where=on("p3.16xlarge"), global_batch=12)))


@settings(max_examples=10, deadline=None)
@given(gpus=st.sampled_from([2, 3, 4, 8]), data=st.data())
def test_no_partition_is_simulated_below_its_menus_bound(
    gpus: int, data: st.DataObject
) -> None:
    asked = problem(gpus=gpus, where=on("p3.16xlarge"), global_batch=12)
    menu = data.draw(st.sampled_from(menus_of(gpus)))
    for partition in menu.best()[:8]:
        layout = menu.layout(partition)
        run = estimate(asked.job, asked.machine.cluster, layout, on=asked.machine)
        assert layout.gpus == gpus
        assert run.step_time_s >= menu.lower_s * (1 - 1e-9)
        bound_s, _ = menu.bound_s(run.step_time_s * 2)
        assert run.step_time_s >= bound_s * (1 - 1e-9)


def test_whole_layers_on_whole_meshes_tighten_the_bound() -> None:
    """On small devices the mean over all of them is far off."""
    asked = problem("gpt-2.7b", 6, where=on("p3.16xlarge"), global_batch=48)
    asked = replace(asked, precision="fp16", flash_attention=False)
    found = both(asked)[1]
    assert found.wider is not None
    loose = min(menu.lower_s for menu in menus(asked))
    assert found.wider.lower > loose * 1.1
    assert found.gap < 0.2


def test_a_case_where_unlike_stages_win_and_can_be_read_back(tmp_path: Path) -> None:
    """A prime number of devices: alike stages leave some idle, or take one each."""
    asked = problem("gpt-1.3b", 7, where=on("p3.16xlarge"), global_batch=72)
    asked = replace(asked, precision="fp16", flash_attention=False)
    alike, any_stage = both(asked)
    assert isinstance(any_stage.best, Staged)
    assert any_stage.value < alike.value
    layout = any_stage.best.estimate.layout
    assert layout.summary["tp"] is None or layout.summary["dp"] is None
    write_layout(tmp_path / "it.json", asked.job, "p3.16xlarge", layout, ())
    assert parse_file(json.loads((tmp_path / "it.json").read_text())).layout == layout
    row = Sized(gpus=7, posed=Posed(problem=asked), solution=any_stage)
    told = [str(cell) for cell in sizes_table([row], RunOptions()).columns[1].cells]
    assert told == [layout_words(layout)]
    assert level_of("data_comm", any_stage.best, asked.machine.island) is not None


def test_a_pinned_number_of_stages_is_kept() -> None:
    asked = problem(gpus=4, where=on("p3.16xlarge"), global_batch=8, pins=Pins(pp=2))
    found = stages_of_any(asked, Uniform(), inf, Clock(limits=Limits()))
    assert found.candidates
    assert {one.estimate.layout.pp for one in found.candidates} == {2}


def test_context_parallelism_that_is_pinned_is_in_every_stage() -> None:
    asked = problem(gpus=4, where=on("p3.16xlarge"), global_batch=8, pins=Pins(cp=2))
    require_possible(asked)
    found = stages_of_any(asked, Uniform(), inf, Clock(limits=Limits()))
    assert found.candidates
    stages = [stage for one in found.candidates for stage in one.estimate.layout.stages]
    assert {stage.mesh.cp for stage in stages} == {2}


def test_shardings_of_one_mesh_are_not_asked_of_several() -> None:
    with pytest.raises(Contradiction, match="--shardings"):
        require_answerable(problem(), Around(shardings=True), any_stage=True)


def test_no_time_says_that_not_all_was_looked_at() -> None:
    asked = problem(gpus=4)
    alike = BranchAndBound().solve(asked, Limits())
    loose = replace(alike, value=inf)  # every menu is promising
    found = widened(asked, loose, Limits(time_limit_s=0.0))
    assert not found.complete
    assert found.best is alike.best


@pytest.mark.parametrize(
    ("pins", "named"),
    [
        (Pins(virtual_stages=2), "--virtual-stages 2"),
        (Pins(schedule="gpipe"), "--schedule gpipe"),
        (Pins(recompute_layers=1), "--recompute-layers"),
    ],
)
def test_pins_that_say_otherwise_leave_alike_stages(pins: Pins, named: str) -> None:
    """Refused where there are no alike ones."""
    asked = replace(problem(pins=pins), any_stage=True)
    require_possible(asked)
    assert [one for one in alike_alone(asked) if one.startswith(named)]
    alike = solve(asked, BranchAndBound(), Limits())
    assert widen(asked, alike, Limits()) is alike
    uneven = replace(asked, gpus=8, pins=replace(pins, pp=3))
    with pytest.raises(Contradiction, match=named):
        require_possible(uneven)


def test_what_cannot_differ_is_refused() -> None:
    with pytest.raises(Unsupported, match="one mesh alone"):
        require_possible(problem(where=local(), executable=True))


def test_stages_of_any_mesh_need_not_divide_the_gpus() -> None:
    """Three of them on eight GPUs, where no three alike ones are."""
    asked = problem(gpus=8, global_batch=8, pins=Pins(pp=3))
    asked = replace(asked, any_stage=True)
    found = widen(asked, solve(asked, BranchAndBound(), Limits()), Limits())
    check(asked, found)
    assert found.best is not None
    assert found.best.estimate.layout.pp == 3
    assert found.best.estimate.layout.gpus == 8
    assert (found.search, found.space) == ("any-stage", "any-stage")
    assert 0 < found.lower <= found.value
    require_consistent(asked)
    require_possible_pins(asked)
    with pytest.raises(Contradiction, match="does not divide 8 GPUs"):
        require_consistent(replace(asked, any_stage=False))
    with pytest.raises(Unsupported, match="--pp 3 does not divide 8 GPUs"):
        solve(asked, SEARCHES["megatron"], Limits())


def test_no_number_of_stages_fits_where_nothing_does() -> None:
    asked = problem("gpt-6.7b", 8, global_batch=8, limit_bytes=1e9, pins=Pins(pp=3))
    asked = replace(asked, any_stage=True)
    assert solve(asked, BranchAndBound(), Limits()).best is None
    said = diagnose(asked).constraint
    assert said.startswith("memory: no 3 stages of gpt-6.7b, of any mesh, fit on 8")


def test_very_deep_models_have_alike_stages(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stages of any mesh would take the square of their layers."""
    asked = replace(problem(gpus=4), any_stage=True)
    alike = BranchAndBound().solve(asked, Limits())
    assert widen(asked, alike, Limits()).wider is not None
    monkeypatch.setattr(stage_places, "MOST_LAYERS", asked.job.graph.body - 1)
    assert widen(asked, alike, Limits()) is alike
