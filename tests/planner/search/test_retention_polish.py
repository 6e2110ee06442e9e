"""Retention chosen stage by stage: never worse, never too big, and told."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest

from costmodel.layout.layout import Layout
from costmodel.layout.offload import NOTHING
from costmodel.layout.retention import AUTO
from costmodel.layout.strategy import Uniform, spell_out
from costmodel.options.pins import Pins
from costmodel.simulation.remat_auto import executed
from costmodel.support.features import treatment
from costmodel.support.support_table import refusals
from planner.api import refined, solve
from planner.problem.layout_text import away_words, retention_words
from planner.problem.problem import Objective, Problem
from planner.problem.solution import Solution
from planner.report.document import bound_document
from planner.search.branch_and_bound import BranchAndBound
from planner.search.remat_per_stage import _Field, polished, without_auto
from planner.search.search import Clock, Limits
from profiles.errors import Contradiction
from tests.support.problems import local, on, problem

LIMITS = Limits(runners_up=2)


def refine(posed: Problem, found: Solution, limits: Limits) -> Solution:
    return refined(posed, found, posed.pins, limits)


@cache
def tight() -> tuple[Problem, Solution]:
    """A question whose best layout makes something again."""
    posed = problem("gpt-mini", 2, pins=Pins(dp=1, zero=0))
    free = solve(posed, BranchAndBound(), LIMITS)
    assert free.best is not None
    pins = replace(posed.pins, micro_batch=free.best.choice.micro_batch, pp=2, tp=1)
    posed = replace(posed, pins=pins)
    kept = posed.simulate(replace(free.best.choice, pp=2, tp=1, recompute="none"))
    full = posed.simulate(replace(kept.choice, recompute="full"))
    sizes = [one.estimate.peak_needed_bytes for one in (kept, full)]
    posed = replace(posed, memory_limit_bytes=0.5 * sum(sizes))
    return posed, solve(posed, BranchAndBound(), LIMITS)


def test_it_is_better_where_memory_binds() -> None:
    posed, found = tight()
    better = refine(posed, found, LIMITS)
    assert better.best is not None
    assert found.best is not None
    assert better.best.choice.recompute == AUTO
    assert better.value < found.value
    assert better.best.estimate.peak_needed_bytes <= posed.memory_limit_bytes
    assert better.runners_up[0] == found.best
    assert len(better.runners_up) <= LIMITS.runners_up
    assert retention_words(better.best.estimate.layout).startswith("stage 0")


def test_the_proof_stays_and_says_what_was_added() -> None:
    posed, found = tight()
    document = bound_document(posed, refine(posed, found, LIMITS))
    added = document["added"]
    assert document["space"] == "uniform"
    assert document["lower"] <= document["value"] < added["uniform"]["value"]
    assert added["uniform"] == {"value": found.value, "lower": found.lower}
    assert added["lower"] <= document["value"]
    assert 0 < added["gain"] < 1
    assert added["layouts_simulated"] >= 1


def test_nothing_is_lost_where_memory_does_not_bind() -> None:
    posed = problem(gpus=2)
    found = solve(posed, BranchAndBound(), LIMITS)
    better = refine(posed, found, LIMITS)
    assert better.best == found.best
    assert better.value == found.value
    assert better.added is not None
    assert better.added.simulated == 0


@pytest.mark.parametrize("pins", [Pins(recompute="full"), Pins(recompute_layers=1)])
def test_a_pinned_recompute_stays(pins: Pins) -> None:
    posed = problem(gpus=2, pins=pins)
    found = solve(posed, BranchAndBound(), LIMITS)
    assert polished(posed, found, LIMITS) is found


def test_memory_as_the_objective_stays() -> None:
    posed = problem(gpus=2, objective=Objective.MEMORY)
    found = solve(posed, BranchAndBound(), LIMITS)
    assert polished(posed, found, LIMITS) is found


def test_no_time_left_leaves_the_answer_as_it_is() -> None:
    posed, found = tight()
    late = polished(posed, found, replace(LIMITS, time_limit_s=0.0))
    assert late.best == found.best


def test_on_this_machine_only_what_is_executed_is_chosen() -> None:
    posed = problem("gpt-mini", 2, where=local(), executable=True)
    kept = Uniform(pp=2, zero=0, precision="fp32", micro_batch=2)
    peaks = [
        posed.simulate(replace(kept, recompute=name)).estimate.peak_needed_bytes
        for name in ("none", "full")
    ]
    posed = replace(posed, memory_limit_bytes=0.5 * sum(peaks))
    found = posed.simulate(replace(kept, recompute=AUTO))
    words = {
        treatment(plan.retention)
        for stage in found.estimate.layout.stages
        for plan in stage.plans
    }
    assert words <= {"none", "selective", "full", "by name", "segments"}
    assert len(words) > 1
    assert not refusals(found.estimate.layout, posed.job)


def test_what_is_carried_out_hangs_on_the_model_and_not_on_zero() -> None:
    words = {}
    for name, zero in [("gpt-13b", 1), ("gpt-13b", 3), ("mixtral-8x7b", 1)]:
        posed = problem(name, 2, global_batch=2)
        choice = Uniform(dp=2, zero=zero, zero_group=2)
        plain = spell_out(choice, posed.job.graph, posed.job.global_batch)
        words[name, zero] = executed(plain, posed.job)
    assert words["gpt-13b", 1] >= {"none", "full", "by name", "segments"}
    assert words["gpt-13b", 1] == words["gpt-13b", 3]
    assert words["mixtral-8x7b", 1] >= {"none", "selective", "full"}
    assert words["mixtral-8x7b", 1] >= {"by name", "segments", "offloaded"}
    assert not any("of routing" in known for known in words.values())


def test_where_offloading_is_free_stages_make_again_and_have_away() -> None:
    posed, _ = tight()
    free = replace(posed, offloads_to="cpu")
    found = solve(free, BranchAndBound(), LIMITS)
    better = refine(free, found, LIMITS)
    assert better.best is not None
    assert found.best is not None
    assert better.value <= min(found.value, refine(posed, *tight()[1:], LIMITS).value)
    leaves = replace(posed, leaves_to="cpu")
    kept = replace(posed.simulate(found.best.choice).choice, offload=NOTHING)
    both, again = (
        one.simulate(replace(kept, recompute=AUTO)) for one in (leaves, posed)
    )
    layout = both.estimate.layout
    assert leaves.fits(both)
    assert both.estimate.step_time_s <= again.estimate.step_time_s
    assert both.choice.offload.activations == layout.away_share > 0
    assert away_words(layout).startswith("stage 0: ")
    assert len(set(shares_away(layout))) == len(layout.stages), "each has its own"


def shares_away(layout: Layout) -> list[float]:
    """The largest share away of each stage."""
    return [
        max(plan.retention.away("*") for plan in stage.plans) for stage in layout.stages
    ]


def test_auto_frees_the_search_of_presets() -> None:
    assert without_auto(Pins(recompute=AUTO, tp=2)) == Pins(tp=2)
    assert without_auto(Pins(recompute="full")) == Pins(recompute="full")
    with pytest.raises(Contradiction, match="--recompute-layers 2 out"):
        without_auto(Pins(recompute=AUTO, recompute_layers=2))


@pytest.mark.parametrize(
    ("model", "gpus", "batch", "where"),
    [("llama3-8b", 8, 64, "l40s-8x"), ("gpt-2.7b", 8, 16, "p3.16xlarge")],
)
def test_nothing_comes_to_less_than_is_likely(
    model: str, gpus: int, batch: int, where: str
) -> None:
    """Candidates are left because of what they are likely to come to at the least."""
    posed = problem(model, gpus, where=on(where), global_batch=batch)
    found = solve(posed, BranchAndBound(), LIMITS)
    field, tried = _Field(posed, Clock(limits=LIMITS), tight=False), 0
    while field.least < found.value:
        for one in sorted(field.spread(found.value), key=lambda one: one.likely)[:12]:
            came_to = posed.simulate(one.choice)
            if posed.fits(came_to):
                tried += 1
                assert one.least <= one.likely <= posed.value(came_to)
    assert tried
