"""Machines that come and go: torch's dynamic rendezvous, asked more often.

torch's agent starts its workers again when a machine waits to join. That one is gone it
learns from its workers, whose collectives fail when they time out. Here one that sends
no sign of life for `LIFE_S`, or leaves, counts as one that waits: the others meet anew.

The store in which they meet is in the launcher at the endpoint. Who loses it waits for
somebody to be there again, and does not train without it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from torch.distributed.elastic.rendezvous.api import (
    RendezvousHandler,
    RendezvousInfo,
    RendezvousParameters,
    rendezvous_handler_registry,
)
from torch.distributed.elastic.rendezvous.c10d_rendezvous_backend import create_backend
from torch.distributed.elastic.rendezvous.dynamic_rendezvous import (
    DynamicRendezvousHandler,
    create_handler,
)

BACKEND: Final = "meshwright"
_BEAT_S: Final = 1
_MISSED: Final = 5
LIFE_S: Final = _BEAT_S * _MISSED  # clocks of machines must be closer than this
LAST_CALL_S: Final = 2  # that the least number waits for more
READ_S: Final = 10  # for an answer of the store
SETTINGS: Final[Mapping[str, Any]] = {
    "keep_alive_interval": _BEAT_S,
    "keep_alive_max_attempt": _MISSED,
    "last_call_timeout": LAST_CALL_S,
    "read_timeout": READ_S,
}


class Watchful(RendezvousHandler):
    """A dynamic rendezvous that also says when somebody who met is there no more."""

    def __init__(self, inner: DynamicRendezvousHandler) -> None:
        self._inner, self._met = inner, 0

    def next_rendezvous(self) -> RendezvousInfo:
        """Meet."""
        found = self._inner.next_rendezvous()
        self._met = found.world_size
        return found

    def num_nodes_waiting(self) -> int:
        """Those that wait to join, and those that are gone."""
        waiting = self._inner.num_nodes_waiting()
        there = len(self._inner._state_holder.state.participants)
        return waiting + max(0, self._met - there)

    @property
    def use_agent_store(self) -> bool:
        """Whether workers meet in the launcher's store; False where it may be gone."""
        return self._inner.use_agent_store

    def get_backend(self) -> str:
        """Its name."""
        return BACKEND

    def is_closed(self) -> bool:
        """Whether nobody may join any more."""
        return self._inner.is_closed()

    def set_closed(self) -> None:
        """Let nobody join any more."""
        self._inner.set_closed()

    def get_run_id(self) -> str:
        """The name of what meets."""
        return self._inner.get_run_id()

    def shutdown(self) -> bool:
        """Close it."""
        return self._inner.shutdown()


def register() -> None:
    """Let torch's launcher know `BACKEND`."""
    rendezvous_handler_registry.register(BACKEND, _create)


def _create(parameters: RendezvousParameters) -> RendezvousHandler:
    backend, store = create_backend(parameters)
    return Watchful(create_handler(store, backend, parameters))
