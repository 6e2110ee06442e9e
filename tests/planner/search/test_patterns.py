"""Layers of several kinds: the search proves the best cut of any pattern."""

from __future__ import annotations

from dataclasses import replace

import pytest

from costmodel.options.pins import Pins
from planner.api import solve
from planner.baselines.exhaustive import Exhaustive
from planner.problem.problem import Problem
from planner.search.branch_and_bound import BranchAndBound
from planner.search.search import Limits
from profiles.models.spec import DecoderSpec, MoeSpec, RecurrenceSpec
from tests.support.problems import problem

MIXER = RecurrenceSpec(
    kind="mamba-2", heads=8, head_dim=64, state=64, groups=4, conv_width=4, chunk=64
)
DELTA = replace(MIXER, kind="gated-delta")
MOE = MoeSpec(experts=4, experts_per_token=2, expert_ffn_hidden=256)


def posed(pattern: str, layers: int, mixer: RecurrenceSpec) -> Problem:
    cp = 1 if layers > 5 else None  # that of the smallest is searched for, too
    found = problem(gpus=4, pins=Pins(recompute="none", zero=1, cp=cp))
    assert isinstance(found.job.spec, DecoderSpec)
    spec = replace(
        found.job.spec,
        layers=layers,
        pattern=pattern,
        recurrence=mixer,
        moe=MOE if "E" in pattern or mixer is DELTA else None,
    )
    return replace(found, job=replace(found.job, spec=spec))


@pytest.mark.parametrize(
    ("pattern", "layers", "mixer"),
    [("M-M*-ME", 7, MIXER), ("MMM*", 8, DELTA), ("M*", 5, MIXER)],
)
def test_the_best_layout_of_a_hybrid_is_proven(
    pattern: str, layers: int, mixer: RecurrenceSpec
) -> None:
    asked = posed(pattern, layers, mixer)
    found = solve(asked, BranchAndBound(), Limits(runners_up=0))
    oracle = solve(asked, Exhaustive(), Limits(runners_up=0))
    assert found.best is not None
    assert found.gap == oracle.gap == 0
    assert found.value == pytest.approx(oracle.value, rel=1e-9)
