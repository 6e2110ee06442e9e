"""Stages of unequal layers: no cut goes below the bounds, and none is better."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import combinations, pairwise
from math import inf

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from costmodel.layout.strategy import RECOMPUTES, Columns, Uniform, spell_out
from costmodel.options.pins import Pins
from costmodel.support.legality import violations
from costmodel.support.support_table import refusals
from planner.api import plan, solve
from planner.cuts.bounds import CutFloor
from planner.cuts.search import are_searched, families, with_cuts
from planner.cuts.table import CutTable
from planner.cuts.units import Units
from planner.problem.problem import Problem
from planner.problem.solution import EXACT
from planner.problem.space import Space
from planner.problem.table import Table, length
from planner.search.branch_and_bound import BranchAndBound
from planner.search.remat_per_stage import making_again
from planner.search.search import Limits
from profiles.hardware.catalog import cluster
from profiles.models.catalog import model
from profiles.models.job import Job
from profiles.models.spec import DecoderSpec, MoeSpec
from tests.support.problems import on, problem

LAYERS = 5


@st.composite
def shallow(draw: st.DrawFn) -> Problem:
    """Few layers, so that all cuts can be simulated; in some memory binds."""
    posed = problem(
        "gpt-mini",
        draw(st.sampled_from((2, 3))),
        global_batch=draw(st.sampled_from((4, 8, 12))),
        where=on(draw(st.sampled_from(("dgx-a100-80gb", "p3.16xlarge", "l40s-8x")))),
        pins=Pins(
            dp=1,
            cp=1,
            micro_batch=1,
            schedule="1f1b",
            tp=draw(st.sampled_from((None, 1))),
            recompute=draw(st.sampled_from(("none", "full", "selective"))),
        ),
    )
    spec = posed.job.spec
    assert isinstance(spec, DecoderSpec)
    spec = replace(spec, layers=LAYERS, vocab=draw(st.sampled_from((512, 50_000))))
    if draw(st.booleans()):  # leading layers of another kind
        moe = MoeSpec(experts=4, experts_per_token=1, expert_ffn_hidden=512)
        first = draw(st.sampled_from((1, 2)))
        spec = replace(spec, moe=replace(moe, first_layer=first))
    posed = replace(posed, job=replace(posed.job, spec=spec))
    assume(are_searched(posed) and length(families(posed)))
    if draw(st.booleans()):
        peaks = [peak for _, _, peak in simulated(posed)]
        limit = float(np.quantile(peaks, draw(st.sampled_from((0.1, 0.4, 0.7)))))
        posed = replace(posed, memory_limit_bytes=limit)
    return posed


def cuts(body: int, stages: int) -> Iterator[tuple[int, ...]]:
    """All of them; stages at the ends may be empty."""
    for places in combinations(range(body + 2 - 1), stages - 1):
        ends = (-1, *places, body + 2 - 1)
        counts = [two - one for one, two in pairwise(ends)]
        yield (counts[0] - 1, *counts[1:-1], counts[-1] - 1)


def simulated(posed: Problem) -> list[tuple[Columns, float, float]]:
    """Each family's cuts: seconds and peaks."""
    space = Space.of(posed)
    columns = space.leaves(families(posed))
    found = []
    for row in range(len(columns)):
        for cut in cuts(LAYERS, int(columns.pp[row])):
            choice = replace(space.choice(columns, row), layers_per_stage=cut)
            one = posed.simulate(choice).estimate
            only = columns.take(np.array([row]))
            found.append((only, one.step_time_s, one.peak_needed_bytes))
    return found


@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(shallow())
def test_bounds_are_below_every_cut_and_the_best_is_within_the_gap(
    posed: Problem,
) -> None:
    branches = families(posed)
    assume(len(branches["pp"]) <= 12)
    every = simulated(posed)
    _require_bounds(posed, branches, every)
    limit = posed.memory_limit_bytes
    every = [one for one in every if one[2] <= limit]
    least = min((seconds for _, seconds, _ in every), default=inf)
    even = BranchAndBound().solve(posed, Limits())
    found = with_cuts(posed, even, Limits())
    if found.best is None:
        assert not every
        return
    assert found.cuts is not None
    assert found.cuts.lower <= least * (1 + EXACT)
    assert found.value <= even.value
    assert found.value * (1 - found.gap) <= least * (1 + EXACT)


def _require_bounds(
    posed: Problem, branches: Table, every: list[tuple[Columns, float, float]]
) -> None:
    units = Units.of(posed.job.graph)
    assert units is not None
    floor_s = CutFloor.of(posed, units, branches).seconds().min()
    tables: dict[tuple[int, ...], float] = {}
    for columns, seconds, peak in every:
        assert floor_s <= seconds * (1 + EXACT)
        if peak > posed.memory_limit_bytes:
            continue
        names = ("tp", "pp", "micro_batch", "zero", "zero_group", "sequence_parallel")
        key = tuple(int(getattr(columns, name)[0]) for name in names)
        if key not in tables:
            tables[key] = CutTable.of(posed, units, columns, units.count).bound_s()
        assert tables[key] <= seconds * (1 + EXACT)


def test_tables_of_many_are_those_of_each() -> None:
    """Stages of many candidates are priced together, of all presets at once."""
    posed = problem("gpt-mini", 8)
    units = Units.of(posed.job.graph)
    assert units is not None
    columns = Space.of(posed).leaves(families(posed))
    keeps = making_again(columns, RECOMPUTES.index("none"))
    full = making_again(columns, RECOMPUTES.index("full"))
    rows = np.random.default_rng(0).permutation(len(columns))[:12]
    most = [units.count - row % 2 for row in range(len(rows))]
    ways = [keeps.take(rows), full.take(rows)]
    fitted = CutTable.fitted(posed, units, ways, most)
    for row, at_most, (kept, mixed) in zip(rows, most, fitted, strict=True):
        alone = CutTable.of(posed, units, keeps.take(np.array([row])), at_most)
        again = CutTable.of(posed, units, full.take(np.array([row])), at_most)
        there = np.isfinite(alone.both_s)
        np.testing.assert_allclose(kept.both_s[there], alone.both_s[there])
        np.testing.assert_array_equal(
            np.isfinite(kept.both_s), np.isfinite(again.both_s)
        )
        both = np.isfinite(mixed.both_s)
        assert (mixed.both_s[both] >= kept.both_s[both] * (1 - EXACT)).all()
        assert (mixed.both_s[both] <= again.both_s[both] * (1 + EXACT)).all()


def test_unequal_layers_are_found_where_equal_ones_wait() -> None:
    """The issue that people have on few devices with little memory and slow links."""
    found, where = model("llama3-8b"), cluster("l40s-8x")
    job = Job(model=found.name, spec=found.spec, seq_len=8192, global_batch=64)
    pins = Pins(tp=1, pp=4, micro_batch=1)
    best = plan(job, where, gpus=8, pins=pins, runners_up=0)
    assert best.best is not None
    assert best.cuts is not None
    assert best.cuts.even_value is not None
    assert best.value < 0.9 * best.cuts.even_value
    counts = best.best.choice.layers_per_stage
    assert counts is not None
    assert len(set(counts)) > 1
    assert not list(violations(best.best.choice, job, where))


def test_given_layers_are_kept_and_even_ones_are_even() -> None:
    posed = problem("gpt-mini", 4, pins=Pins(pp=4, dp=1, stage_layers="1,2,3,2"))
    found = solve(posed, BranchAndBound(), Limits())
    assert found.best is not None
    assert found.best.choice.layers_per_stage == (1, 2, 3, 2)
    even = problem("gpt-mini", 4, pins=Pins(pp=4, dp=1, stage_layers="2,2,2,2"))
    free = problem("gpt-mini", 4, pins=Pins(pp=4, dp=1))
    one, other = (solve(each, BranchAndBound(), Limits()) for each in (even, free))
    assert one.value == pytest.approx(other.value)


def test_unequal_layers_are_executed() -> None:
    job = problem("gpt-tiny", 2).job
    choice = Uniform(pp=2, precision="fp32", zero=0, layers_per_stage=(1, 3))
    layout = spell_out(choice, job.graph, job.global_batch)
    assert not refusals(layout, job)
    assert [stage.body for stage in layout.stages] == [1, 3]
