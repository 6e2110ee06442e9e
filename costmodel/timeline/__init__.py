"""A schedule run on a clock: spans, waits, memory over time."""

from typing import TYPE_CHECKING

from profiles.lazy import lazily

if TYPE_CHECKING:
    from costmodel.timeline.batched import simulate_together
    from costmodel.timeline.costs import StageCosts, transient_of
    from costmodel.timeline.processor_sharing import shared_bound_s
    from costmodel.timeline.span import Span, spans
    from costmodel.timeline.timeline import Timeline, reduce_tail_s, simulate

__all__ = [
    "Span",
    "StageCosts",
    "Timeline",
    "reduce_tail_s",
    "shared_bound_s",
    "simulate",
    "simulate_together",
    "spans",
    "transient_of",
]

__getattr__ = lazily(__name__, __file__)
