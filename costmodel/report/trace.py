"""A simulated step as a Chrome trace, which Perfetto reads too."""

from __future__ import annotations

import json
from collections.abc import Iterable

from costmodel.simulation import Estimate
from costmodel.timeline import Span, spans
from profiles.units import US


def chrome_trace(estimate: Estimate) -> str:
    """The step's spans as trace events, one track a resource (microseconds)."""
    found = spans(estimate.timeline)
    tracks = {name: number for number, name in enumerate(_ordered(found))}
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
        for span in found
    ]
    document = {"displayTimeUnit": "ms", "traceEvents": events}
    return json.dumps(document, allow_nan=False)


def _ordered(found: Iterable[Span]) -> list[str]:
    return list(dict.fromkeys(span.resource for span in found))
