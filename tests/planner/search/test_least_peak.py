"""Retention by stage has a bound of its bytes, and is found where nothing else fits."""

from __future__ import annotations

from dataclasses import replace
from math import inf

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from costmodel.layout.strategy import Columns, Uniform
from costmodel.options.pins import Pins
from planner.analysis.infeasibility import diagnose
from planner.api import refined, solve
from planner.problem.problem import Problem
from planner.problem.solution import Status
from planner.problem.space import Space
from planner.report.document import added_document
from planner.search.bounds import leaf_bytes
from planner.search.branch_and_bound import BranchAndBound
from planner.search.least_peak import leanest
from planner.search.search import Clock, Limits
from profiles.models.spec import DecoderSpec
from tests.support.problems import all_pins, on, problem

SEARCH = BranchAndBound()
NO_LIMITS = Limits(runners_up=0)


def deep(
    gpus: int = 1, *, layers: int = 24, pins: Pins | None = None, cluster: str = "cpu"
) -> Problem:
    """Many small layers, whose inputs are most of what is kept."""
    posed = problem("gpt-tiny", gpus, where=on(cluster), pins=pins)
    assert isinstance(posed.job.spec, DecoderSpec)
    spec = replace(posed.job.spec, layers=layers, max_positions=2048)
    return replace(posed, job=replace(posed.job, spec=spec, seq_len=2048))


def least_by_stage(posed: Problem, choice: Uniform) -> float:
    """The peak of *choice* where it makes again all it can, stage by stage."""
    tight = replace(posed, memory_limit_bytes=0.0)
    found = tight.simulate(replace(choice, recompute="auto")).estimate
    return found.peak_needed_bytes


@st.composite
def candidates(draw: st.DrawFn) -> tuple[Problem, Uniform]:
    """A problem with pins, and one of its layouts, which keeps everything."""
    pins = replace(draw(all_pins()), recompute=None, recompute_layers=None)
    gpus, layers = draw(st.sampled_from((1, 2, 4))), draw(st.sampled_from((4, 13)))
    posed = deep(gpus, layers=layers, pins=pins)
    branches = Space.of(posed).keeping_all().branches
    columns = Space.of(posed).leaves(branches)
    assume(len(columns))
    row = draw(st.integers(0, len(columns) - 1))
    return posed, Space.of(posed).choice(columns, row)


@settings(max_examples=8)
@given(candidates())
def test_no_choice_by_stage_needs_less_than_its_bound(
    asked: tuple[Problem, Uniform],
) -> None:
    posed, choice = asked
    (bound,) = leaf_bytes(posed.by_stage(), Columns.of([choice]))
    assert bound <= least_by_stage(posed, choice) * (1 + 1e-9)


@settings(max_examples=8)
@given(candidates())
def test_what_fits_by_stage_is_found_under_the_same_pins(
    asked: tuple[Problem, Uniform],
) -> None:
    """Whatever part of the layout is pinned, in just the memory that it needs."""
    posed, choice = asked
    limit = least_by_stage(posed, choice) * (1 + 1e-6)
    tight = replace(posed, memory_limit_bytes=limit)
    fits = tight.simulate(replace(choice, recompute="auto"))
    assume(tight.fits(fits))
    found = solve(tight, SEARCH, NO_LIMITS)
    assert found.best is not None
    found = refined(tight, found, tight.pins, NO_LIMITS)
    assert found.value <= solve(tight, SEARCH, NO_LIMITS).value


def test_a_depth_that_no_preset_fits_is_found_by_stage() -> None:
    posed = deep(layers=200, pins=Pins(micro_batch=1))
    least = leanest(posed, Clock(limits=Limits()))
    assert least is not None
    assert least.candidate.choice.recompute == "auto"
    peak = least.candidate.estimate.peak_needed_bytes
    tight = replace(posed, memory_limit_bytes=peak * (1 + 1e-6))
    assert SEARCH.solve(tight, NO_LIMITS).best is None
    found = solve(tight, SEARCH, NO_LIMITS)
    assert found.best is not None
    assert found.added is not None
    assert found.status is Status.FEASIBLE
    assert found.added.uniform_value == inf
    document = added_document(found)
    assert document is not None
    assert document["uniform"] is document["gain"] is None


def test_the_smallest_peak_is_that_of_any_layout() -> None:
    """What is said of a model that does not fit holds by stage, too."""
    posed = replace(deep(pins=Pins(micro_batch=1)), memory_limit_bytes=1.0)
    least = leanest(posed, Clock(limits=Limits()))
    assert least is not None
    for recompute in ("none", "full", "sqrt", "auto"):
        found = posed.simulate(Uniform(recompute=recompute, precision=posed.precision))
        peak = least.candidate.estimate.peak_needed_bytes
        assert peak <= found.estimate.peak_needed_bytes


@pytest.mark.parametrize("proven", [True, False])
def test_a_smallest_peak_that_is_not_proven_is_not_said_to_be(
    proven: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    posed = replace(deep(gpus=4), memory_limit_bytes=3e7)
    found = leanest(posed, Clock(limits=Limits()))
    assert found is not None
    said = replace(found, proven=proven)
    monkeypatch.setattr("planner.analysis.infeasibility.leanest", lambda *_: said)
    words = diagnose(posed, Limits(time_limit_s=1)).constraint
    assert ("of any layout" in words) == proven
    assert ("that was found" in words) != proven


def test_segments_are_searched_where_layers_are_alike() -> None:
    chosen = Space.of(deep()).branches["recompute"]
    assert 4 in chosen
    mixed = replace(deep(), job=problem("deepseek-v2-lite", 1).job)
    assert 4 not in Space.of(mixed).branches["recompute"]
