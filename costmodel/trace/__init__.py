"""A step as slices of streams: priced, measured, and one beside the other."""

from typing import TYPE_CHECKING

from profiles.lazy import public

if TYPE_CHECKING:
    from costmodel.trace.comparison import Comparison, compared, comparison_table
    from costmodel.trace.events import (
        ACTIONS,
        MEASURED_FILE,
        Slice,
        Trace,
        about,
        read_trace,
        trace_text,
    )
    from costmodel.trace.memory import memory_levels
    from costmodel.trace.priced import HIDDEN, priced_trace
    from costmodel.trace.snapshot import (
        SUFFIXES,
        memory_snapshot,
        snapshot_bytes,
    )

__all__, __getattr__ = public(__name__, __file__)
