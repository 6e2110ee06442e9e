"""What ran, recorded: actions, operators, collectives, peaks."""

from typing import TYPE_CHECKING

from profiles.lazy import public

if TYPE_CHECKING:
    from runtime.trace.action_timer import ActionClock, Span
    from runtime.trace.op_timer import SEND, Call, Listener, Operation
    from runtime.trace.peak_memory import Peak, resident_bytes, watched
    from runtime.trace.recorder import ActionWatch, Recorder
    from runtime.trace.torch_profiler import traced

__all__, __getattr__ = public(__name__, __file__)
