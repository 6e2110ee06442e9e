"""What ran, recorded: actions, operators, collectives, peaks."""

from typing import TYPE_CHECKING

from profiles.lazy import public

if TYPE_CHECKING:
    from runtime.trace.peak_memory import Peak, resident_bytes, traced, watched
    from runtime.trace.recorder import (
        SEND,
        ActionClock,
        ActionObserver,
        Call,
        Listener,
        Operation,
        Recorder,
        Span,
    )

__all__, __getattr__ = public(__name__, __file__)
