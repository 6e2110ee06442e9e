"""What the clock leaves behind: spans for a trace."""

from __future__ import annotations

from collections import defaultdict
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from costmodel.schedule.communication import apart, crosses
from costmodel.schedule.schedules import holders, streams
from costmodel.timeline.event_sim import simulate_on_clock
from costmodel.timeline.events import Span
from tests.support.pipelines import Pipeline, costs_of, pipelines, plain_costs


def test_the_spans_of_a_small_pipeline() -> None:
    pipeline = Pipeline("1f1b", 2, 1, 1)
    costs = plain_costs(
        pipeline, send_forward_s=0.5, send_backward_s=0.5, reduce_s=1.0, step_s=1.0
    )
    _, spans = simulate_on_clock(*pipeline, costs)
    found = [(one.resource, one.label, one.start_s, one.end_s) for one in spans]
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


@given(st.data(), pipelines())
def test_resources_serve_one_thing_at_a_time(
    data: st.DataObject, pipeline: Pipeline
) -> None:
    _, spans = simulate_on_clock(*pipeline, data.draw(costs_of(pipeline)))
    by_resource: dict[str, list[Span]] = defaultdict(list)
    for span in spans:
        by_resource[span.resource].append(span)
    for served in by_resource.values():
        assert all(a.end_s <= b.start_s for a, b in pairwise(served))
    held_by = holders(*pipeline[:3])  # a second copy mirrors it
    boundaries = sum(crosses(held_by, stage) for stage in range(len(held_by)))
    sends = [span for span in spans if "SEND" in span.label]
    assert len(sends) == 2 * boundaries * pipeline.micro_batches
    other = ("SEND", "REDUCE", "STEP", "gather")
    passes = [span for span in spans if not any(word in span.label for word in other)]
    assert len(passes) == sum(map(len, map(apart, streams(*pipeline))))
