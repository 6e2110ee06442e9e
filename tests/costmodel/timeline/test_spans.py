"""Spans for a trace: those that a clock leaves behind."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from itertools import pairwise

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from costmodel.schedule.communication import apart, crosses
from costmodel.schedule.schedules import holders, streams
from costmodel.timeline.span import Span, spans
from costmodel.timeline.timeline import simulate
from tests.oracles.event_sim import simulate_on_clock
from tests.support.pipelines import Pipeline, costs_of, pipelines, plain_costs


def test_the_spans_of_a_small_pipeline() -> None:
    pipeline = Pipeline("1f1b", 2, 1, 1)
    costs = plain_costs(
        pipeline, send_forward_s=0.5, send_backward_s=0.5, reduce_s=1.0, step_s=1.0
    )
    every = spans(simulate(*pipeline, costs))
    found = [(one.resource, one.label, one.start_s, one.end_s) for one in every]
    assert found == [
        ("rank 0 compute", "0F0", 0, 1),
        ("rank 0 compute", "0B0", 5, 7),
        ("rank 0 compute", "0STEP", 8, 9),
        ("rank 0 data parallel", "0REDUCE_GRAD", 7, 8),
        ("rank 0 data parallel", "gather parameters", 9, 9),
        ("rank 1 compute", "1F0", 1.5, 2.5),
        ("rank 1 compute", "1B0", 2.5, 4.5),
        ("rank 1 compute", "1STEP", 8, 9),
        ("rank 1 data parallel", "1REDUCE_GRAD", 4.5, 5.5),
        ("rank 1 data parallel", "gather parameters", 9, 9),
        ("rank 0 to 1", "0SEND_F0", 1, 1.5),
        ("rank 1 to 0", "1SEND_B0", 4.5, 5),
    ]


def by_resource(found: Iterable[Span]) -> dict[str, list[Span]]:
    served: dict[str, list[Span]] = defaultdict(list)
    for span in found:
        served[span.resource].append(span)
    return served


@given(st.data(), pipelines(), st.sampled_from([1.0, 1.5, 4.0]))
def test_they_are_what_the_clock_leaves_behind(
    data: st.DataObject, pipeline: Pipeline, turns: float
) -> None:
    costs = data.draw(costs_of(pipeline, turns=turns))
    found = by_resource(spans(simulate(*pipeline, costs)))
    wanted = by_resource(simulate_on_clock(*pipeline, costs)[1])
    assert found.keys() == wanted.keys()
    for resource, served in found.items():
        others = wanted[resource]
        assert [one.label for one in served] == [one.label for one in others]
        times, theirs = (
            [(one.start_s, one.end_s) for one in each] for each in (served, others)
        )
        np.testing.assert_allclose(times, theirs, rtol=1e-9, atol=1e-12)


@given(st.data(), pipelines())
def test_resources_serve_one_thing_at_a_time(
    data: st.DataObject, pipeline: Pipeline
) -> None:
    every = spans(simulate(*pipeline, data.draw(costs_of(pipeline))))
    rounding_s = 1e-9 * max(span.end_s for span in every) + 1e-12  # of shares in thirds
    for served in by_resource(every).values():
        assert all(a.end_s <= b.start_s + rounding_s for a, b in pairwise(served))
    held_by = holders(*pipeline[:3])  # a second copy mirrors it
    boundaries = sum(crosses(held_by, stage) for stage in range(len(held_by)))
    sends = [span for span in every if "SEND" in span.label]
    assert len(sends) == 2 * boundaries * pipeline.micro_batches
    other = ("SEND", "REDUCE", "STEP", "gather")
    passes = [span for span in every if not any(word in span.label for word in other)]
    assert len(passes) == sum(map(len, map(apart, streams(*pipeline))))
