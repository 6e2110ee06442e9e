"""Stages of unlike meshes: each costs what it would among its like."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from costmodel.layout.layout import Layout
from costmodel.layout.strategy import Uniform, spell_out
from costmodel.simulation.estimator import Estimate, estimate
from profiles.errors import Contradiction, Unsupported
from profiles.hardware.catalog import cluster
from profiles.models.catalog import model
from profiles.models.job import Job

CLUSTER = cluster("dgx-a100-80gb")
JOB = Job(model="gpt-1.3b", spec=model("gpt-1.3b").spec, seq_len=2048, global_batch=32)
RANKS = 4  # of a stage
MICRO_BATCHES = 8


def uniform(tp: int, pp: int = 2, **others: Any) -> Layout:
    """Stages of four ranks, tp of them together."""
    dp = RANKS // tp
    choice = Uniform(
        tp=tp,
        pp=pp,
        dp=dp,
        micro_batch=JOB.global_batch // MICRO_BATCHES // dp,
        zero_group=dp,
        sequence_parallel=tp > 1,
    )
    return spell_out(replace(choice, **others), JOB.graph, JOB.global_batch)


def mixed(*layouts: Layout) -> Layout:
    """The first stage of the first, the second of the second …"""
    stages = (one.stages[place] for place, one in enumerate(layouts))
    return replace(layouts[0], stages=tuple(stages))


def priced(layout: Layout) -> Estimate:
    return estimate(JOB, CLUSTER, layout)


DEGREES = st.sampled_from([1, 2, 4])


@given(first=DEGREES, second=DEGREES)
def test_each_rank_needs_what_it_needs_among_its_like(first: int, second: int) -> None:
    found = priced(mixed(uniform(first), uniform(second))).memory
    assert found[0].document() == priced(uniform(first)).memory[0].document()
    assert found[1].document() == priced(uniform(second)).memory[1].document()


@given(first=DEGREES, second=DEGREES)
def test_the_pipeline_is_no_faster_than_its_slowest_stage(
    first: int, second: int
) -> None:
    run = priced(mixed(uniform(first), uniform(second))).timeline
    for place, tp in enumerate((first, second)):
        alone = priced(uniform(tp)).timeline
        assert run.costs.forward_s[place] == alone.costs.forward_s[place]
        assert run.costs.backward_s[place] == alone.costs.backward_s[place]
    passes = run.costs.forward_s + run.costs.backward_s
    assert run.makespan_s >= MICRO_BATCHES * passes.max()


@given(first=DEGREES, second=DEGREES)
def test_a_boundary_takes_as_long_as_its_slower_side(first: int, second: int) -> None:
    def sent_s(*degrees: int) -> float:
        run = priced(mixed(*map(uniform, degrees))).timeline
        return float(run.costs.send_forward_s[0])

    sides = (sent_s(first, first), sent_s(second, second))
    assert sent_s(first, second) == max(sides)


def test_stages_may_differ_in_size() -> None:
    wide, narrow = uniform(2), uniform(2, dp=1, zero_group=1, micro_batch=4)
    last = narrow.stages[1]
    ranks = replace(last.mesh.ranks, spans=((4, 5),))
    small = replace(last, mesh=replace(last.mesh, ranks=ranks))
    found = priced(replace(wide, stages=(wide.stages[0], small)))
    assert found.layout.gpus == 6
    assert found.layout.summary["dp"] is None
    assert found.step_time_s > priced(wide).step_time_s


def test_what_a_stage_of_its_own_may_not_is_said() -> None:
    wrong = uniform(2)
    mesh = replace(wrong.stages[1].mesh, tp=4, dp_shard=1, ep=2)
    stages = (wrong.stages[0], replace(wrong.stages[1], mesh=mesh))
    with pytest.raises(Contradiction, match="has no experts to spread"):
        priced(replace(wrong, stages=stages))


def test_one_rank_has_one_mesh() -> None:
    woven = uniform(2, virtual_stages=2, schedule="interleaved")
    mesh = replace(woven.stages[2].mesh, tp=4, dp_shard=1)
    stages = (*woven.stages[:2], replace(woven.stages[2], mesh=mesh), woven.stages[3])
    with pytest.raises(Unsupported, match="one pipeline rank with different meshes"):
        priced(replace(woven, stages=stages))
