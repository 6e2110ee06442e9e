"""A simulated step as a Chrome trace, which Perfetto reads too."""

from __future__ import annotations

import json
from collections.abc import Iterable

from costmodel.simulation import Estimate
from costmodel.timeline import Span, simulate_on_clock
from profiles.units import US


def chrome_trace(estimate: Estimate) -> str:
    """The step's spans as trace events, one track a resource (microseconds).

    The schedule is run once more on the clock, which leaves a span for every action.
    """
    layout, costs = estimate.layout, estimate.timeline.costs
    _, spans = simulate_on_clock(
        layout.schedule,
        layout.pp,
        layout.virtual_stages,
        layout.micro_batches,
        costs,
    )
    tracks = {name: number for number, name in enumerate(_ordered(spans))}
    events: list[dict[str, object]] = [
        {
            "name": "thread_name",
            "ph": "M",
            "pid": 0,
            "tid": number,
            "args": {"name": name},
        }
        for name, number in tracks.items()
    ]
    events += [
        {
            "name": span.label,
            "ph": "X",
            "pid": 0,
            "tid": tracks[span.resource],
            "ts": span.start_s / US,
            "dur": (span.end_s - span.start_s) / US,
        }
        for span in spans
    ]
    document = {"displayTimeUnit": "ms", "traceEvents": events}
    return json.dumps(document, allow_nan=False)


def _ordered(spans: Iterable[Span]) -> list[str]:
    seen: dict[str, None] = {}
    for span in spans:
        seen.setdefault(span.resource)
    return list(seen)
