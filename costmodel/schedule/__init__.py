"""Pipeline schedules as streams of actions, and as integers."""

from typing import TYPE_CHECKING

from profiles.lazy import public

if TYPE_CHECKING:
    from costmodel.schedule.action import COMPUTE, Action, IntArray, Kind, Stream
    from costmodel.schedule.communication import (
        RECEIVED,
        apart,
        crosses,
        with_transfers,
    )
    from costmodel.schedule.program import Program, program_of
    from costmodel.schedule.schedules import (
        FLUSHED,
        SCHEDULES,
        copies_held,
        flushes,
        holders,
        least_chunks,
        peak_in_flight,
        require_schedule,
        schedule_called,
        streams,
        versions_held,
    )
    from costmodel.schedule.staleness import Staleness

__all__, __getattr__ = public(__name__, __file__)
