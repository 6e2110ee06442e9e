"""Steps that are not flushed, against a long run spelled out pass by pass."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from costmodel.schedule.schedules import FLUSHED, SCHEDULES, streams
from costmodel.timeline.costs import StageCosts
from costmodel.timeline.timeline import reduce_tail_s, simulate
from tests.support.pipelines import Pipeline, costs_of, pipelines, plain_costs

STALE = tuple(name for name in SCHEDULES if name not in FLUSHED)
STEPS = 120


def long_run_s(pipeline: Pipeline, costs: StageCosts) -> list[float]:
    """When the first rank goes on after each of many steps of one run."""
    schedule, pp, _, m = pipeline
    stale = SCHEDULES[schedule].stale
    assert stale is not None
    tail = reduce_tail_s(
        costs.reduce_s,
        costs.backward_s,
        buckets=costs.buckets,
        overlap=costs.overlap_reduce,
    )
    behind = np.asarray(tail + costs.step_s + costs.gather_s).tolist()
    order = streams(schedule, pp, 1, m * STEPS)
    ends: dict[tuple[str, int, int], float] = {}
    sent: dict[tuple[str, int, int], float] = {}
    link: dict[tuple[int, int], float] = {}
    free, at, steps = [0.0] * pp, [0] * pp, []
    while any(place < len(one) for place, one in zip(at, order, strict=True)):
        for rank in range(pp):
            while at[rank] < len(order[rank]):
                action = order[rank][at[rank]]
                kind, number = str(action.kind), action.micro_batch
                assert number is not None
                forward = kind == "F"
                source = rank - 1 if forward else rank + 1
                awaited = (kind, source, number)
                inside = 0 <= source < pp
                if inside and awaited not in sent:
                    break
                begin = max(free[rank], sent[awaited] if inside else 0.0)
                passes = costs.forward_s if forward else costs.backward_s
                sends = costs.send_forward_s if forward else costs.send_backward_s
                end = free[rank] = begin + float(passes[rank])
                ends[kind, rank, number] = end
                target = rank + 1 if forward else rank - 1
                pair = (rank, target)
                link[pair] = max(link.get(pair, 0.0), end) + float(sends[rank])
                sent[kind, rank, number] = link[pair]
                if not forward and number % m == m - 1:
                    free[rank] += behind[rank]
                    steps += [free[rank]] if rank == 0 else []
                at[rank] += 1
    return steps


@given(st.data(), pipelines(max_pp=5, max_batches=5, names=STALE))
def test_a_step_is_as_long_as_those_of_a_long_run(
    data: st.DataObject, pipeline: Pipeline
) -> None:
    """On average over many, once the pipeline is full and before it drains."""
    costs = data.draw(costs_of(pipeline))
    found, steps = simulate(*pipeline, costs), long_run_s(pipeline, costs)
    fill = -(-2 * pipeline.pp // pipeline.micro_batches)
    until = STEPS - fill
    half = until // 2
    mean = (steps[until - 1] - steps[half - 1]) / (until - half)
    passes_s = costs.forward_s + costs.backward_s
    trip_s = float((passes_s + costs.send_forward_s + costs.send_backward_s).sum())
    assert found.makespan_s == pytest.approx(mean, abs=1e-9 + trip_s / (until - half))
    assert found.makespan_s >= mean * (1 - 1e-9) - 1e-9


@given(st.data(), pipelines(names=STALE), st.sampled_from([1.0, 2.0]))
def test_every_instant_of_a_step_is_accounted_for_once(
    data: st.DataObject, pipeline: Pipeline, turns: float
) -> None:
    found = simulate(*pipeline, data.draw(costs_of(pipeline, turns=turns)))
    for rank in range(pipeline.pp):
        account = found.account(rank)
        parts = [getattr(account, name) for name in account.__slots__]
        assert min(parts) >= -1e-9 * max(found.makespan_s, 1e-9)
        assert sum(parts) == pytest.approx(found.makespan_s, rel=1e-9, abs=1e-12)
        assert account.idle_s == pytest.approx(0, abs=1e-9)


@given(pipelines(names=STALE), st.floats(0.1, 9), st.floats(0.1, 9))
def test_equal_stages_with_free_transfers_never_wait(
    pipeline: Pipeline, forward_s: float, backward_s: float
) -> None:
    costs = plain_costs(pipeline, forward_s=forward_s, backward_s=backward_s)
    found = simulate(*pipeline, costs)
    work = pipeline.micro_batches * (forward_s + backward_s)
    assert found.makespan_s == pytest.approx(work)


@cache
def of_two(turns: float, messages: float = 0.0) -> float:
    """Two equal stages, transfers free."""
    two = Pipeline("2bw", 2, 1, 4)
    costs = plain_costs(two)
    return simulate(*two, replace(costs, turns=turns, messages=messages)).makespan_s


def test_ranks_that_are_always_at_work_gain_nothing_by_turns() -> None:
    assert of_two(2.0) == pytest.approx(of_two(1.0))


def test_ranks_that_wait_leave_their_core_to_others() -> None:
    """One stage of two does three quarters of the work: with a core for both it would
    set the period, 9 s; on one core it has three quarters of that core's time, the
    sum of what both are priced at for half a core each."""
    two = Pipeline("async-1f1b", 2, 1, 3)
    uneven = plain_costs(
        two, forward_s=np.array([1.0, 1 / 3]), backward_s=np.array([2.0, 2 / 3])
    )
    alone = simulate(*two, uneven).makespan_s
    shared = simulate(*two, replace(uneven, turns=2.0)).makespan_s
    assert alone == pytest.approx(9.0)
    assert shared == pytest.approx((9.0 + 3.0) / 2)


def test_stages_that_share_a_table_wait_for_each_other() -> None:
    """The last rank is done with a step's backwards 3 · 2 s before the first one is."""
    four = Pipeline("async-1f1b", 4, 1, 4)
    costs = plain_costs(four, step_s=1.0)
    assert simulate(*four, costs).makespan_s == pytest.approx(13)
    tied = simulate(*four, replace(costs, together=(0, 3)))
    assert tied.makespan_s > 13 + 3
    assert tied.account(3).others_s > 0
    assert tied.account(0).others_s == pytest.approx(0)


@given(st.data(), pipelines(names=STALE), st.sampled_from([1.2, 2.0, 8.0]))
def test_turns_gain_no_more_than_all_are_at_work_together(
    data: st.DataObject, pipeline: Pipeline, turns: float
) -> None:
    """What the bounds of a search take for granted."""
    costs = data.draw(costs_of(pipeline, turns=turns))
    alone = simulate(*pipeline, replace(costs, turns=1.0)).makespan_s
    found = simulate(*pipeline, costs).makespan_s
    busy_s = pipeline.micro_batches * float((costs.forward_s + costs.backward_s).sum())
    margin = 1e-6 * alone + 1e-12
    assert found <= alone + margin
    assert found >= alone / min(turns, pipeline.pp) - margin
    assert found >= busy_s / pipeline.pp - margin
