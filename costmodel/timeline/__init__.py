"""A schedule run on a clock: spans, waits, memory over time."""

from typing import TYPE_CHECKING

from profiles.lazy import public

if TYPE_CHECKING:
    from costmodel.timeline.costs import (
        StageCosts,
        bytes_after,
        bytes_during,
        sends_of,
        transient_of,
    )
    from costmodel.timeline.processor_sharing import shared_bound_s
    from costmodel.timeline.span import Span, spans
    from costmodel.timeline.timeline import Timeline, reduce_tail_s, simulate

__all__, __getattr__ = public(__name__, __file__)
