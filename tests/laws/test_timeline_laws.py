"""Laws of the timeline: one semantics at two speeds, nothing lost, textbooks met."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from costmodel.timeline.costs import StageCosts
from costmodel.timeline.timeline import durations_of, simulate
from tests.oracles.event_sim import simulate_on_clock
from tests.support.pipelines import (
    WHOLE,
    Pipeline,
    costs_of,
    pipelines,
    plain_costs,
    values,
)

SECONDS = (
    "start_s",
    "end_s",
    "compute_end_s",
    "reduce_end_s",
    "step_start_s",
    "rank_end_s",
    "makespan_s",
)
DURATIONS = (
    "forward_s",
    "backward_s",
    "send_forward_s",
    "send_backward_s",
    "reduce_s",
    "step_s",
    "gather_s",
)
any_pipeline = pipelines()


@given(st.data(), any_pipeline)
def test_the_fast_pass_is_the_clock(data: st.DataObject, pipeline: Pipeline) -> None:
    turns = data.draw(st.sampled_from([1.0, 1.5, 4.0]))
    costs = data.draw(costs_of(pipeline, turns=turns))
    fast, (clocked, _) = simulate(*pipeline, costs), simulate_on_clock(*pipeline, costs)
    for name in (*SECONDS, "peak_bytes"):
        found, wanted = getattr(fast, name), getattr(clocked, name)
        np.testing.assert_allclose(found, wanted, rtol=1e-9, atol=1e-12, err_msg=name)


@given(st.data(), any_pipeline)
def test_every_instant_is_accounted_for_once(
    data: st.DataObject, pipeline: Pipeline
) -> None:
    turns = data.draw(st.sampled_from([1.0, 2.0]))
    found = simulate(*pipeline, data.draw(costs_of(pipeline, turns=turns)))
    for rank in range(pipeline.pp):
        account = found.account(rank)
        parts = [getattr(account, name) for name in account.__slots__]
        assert min(parts) >= -1e-12 * found.makespan_s
        assert sum(parts) == pytest.approx(found.makespan_s, rel=1e-12)


@given(st.data(), any_pipeline, st.sampled_from([1.2, 2.0, 8.0]))
def test_ranks_that_take_turns_fill_bubbles_and_no_more(
    data: st.DataObject, pipeline: Pipeline, turns: float
) -> None:
    """Between what all are busy with together, and each with a core to itself."""
    costs = data.draw(costs_of(pipeline, turns=turns))
    free = np.zeros(pipeline.stages)
    costs = replace(costs, send_forward_s=free, send_backward_s=free)
    alone = simulate(*pipeline, replace(costs, turns=1.0))
    found = simulate(*pipeline, costs)
    priced_s = durations_of(found.program, costs).sum()
    margin = 1e-9 * alone.makespan_s
    assert (found.end_s <= alone.end_s + margin).all()
    assert found.end_s.max() >= priced_s / pipeline.pp - margin
    fastest = min(turns, pipeline.pp)
    assert (found.end_s >= alone.end_s / fastest - margin).all()


@given(st.data(), any_pipeline)
def test_free_transfers_are_never_waited_for(
    data: st.DataObject, pipeline: Pipeline
) -> None:
    costs = data.draw(costs_of(pipeline))
    free = np.zeros(pipeline.stages)
    costs = replace(costs, send_forward_s=free, send_backward_s=free)
    found = simulate(*pipeline, costs)
    assert [found.waits(rank)[0] for rank in range(pipeline.pp)] == [0] * pipeline.pp


@given(st.data(), any_pipeline, st.sampled_from(DURATIONS))
def test_slower_never_ends_sooner(
    data: st.DataObject, pipeline: Pipeline, name: str
) -> None:
    costs = data.draw(costs_of(pipeline))
    before = getattr(costs, name)
    more = data.draw(values(len(before)))
    slower: StageCosts = replace(costs, **{name: before + more})
    found, later = simulate(*pipeline, costs), simulate(*pipeline, slower)
    margin = 1e-12 * later.makespan_s
    assert (found.end_s <= later.end_s + margin).all()
    assert (found.rank_end_s <= later.rank_end_s + margin).all()


@given(pipelines(names=WHOLE), st.floats(0.1, 9), st.floats(0.1, 9))
def test_equal_stages_with_free_transfers_meet_the_textbook(
    pipeline: Pipeline, forward_s: float, backward_s: float
) -> None:
    """Narayanan et al., SC 2021, section 2.2: m·(f + b) and p − 1 chunks' passes."""
    costs = plain_costs(pipeline, forward_s=forward_s, backward_s=backward_s)
    both = forward_s + backward_s
    passes = pipeline.micro_batches * pipeline.virtual_stages + pipeline.pp - 1
    found = simulate(*pipeline, costs)
    assert found.makespan_s == pytest.approx(passes * both)
    account = found.account(pipeline.pp - 1)
    waits_s = account.bubble_s + account.others_s + account.idle_s
    assert waits_s == pytest.approx((pipeline.pp - 1) * both)


@given(st.data(), any_pipeline)
def test_memory_pieces_sum_to_the_peak(data: st.DataObject, pipeline: Pipeline) -> None:
    costs = data.draw(costs_of(pipeline))
    found = simulate(*pipeline, costs)
    for rank in range(pipeline.pp):
        action = found.program.action(rank, int(found.peak_action[rank]))
        transient = {
            "F": costs.transient_forward_bytes[action.stage],
            "W": 0.0,
        }.get(action.kind, costs.transient_backward_bytes[action.stage])
        saved = found.held_at_peak()[rank]
        assert found.peak_bytes[rank] == pytest.approx(saved + transient, abs=1e-9)


@given(st.data(), any_pipeline)
def test_more_bytes_never_need_less(data: st.DataObject, pipeline: Pipeline) -> None:
    costs = data.draw(costs_of(pipeline))
    before = costs.saved_bytes
    more = replace(costs, saved_bytes=before + data.draw(values(len(before))))
    peaks = simulate(*pipeline, costs).peak_bytes
    assert (peaks <= simulate(*pipeline, more).peak_bytes + 1e-9).all()


@given(st.data(), any_pipeline)
def test_overlap_only_helps(data: st.DataObject, pipeline: Pipeline) -> None:
    costs = data.draw(costs_of(pipeline))
    best = replace(costs, overlap_reduce=True)
    found = simulate(*pipeline, best).rank_end_s
    assert (found <= simulate(*pipeline, costs).rank_end_s + 1e-9).all()
