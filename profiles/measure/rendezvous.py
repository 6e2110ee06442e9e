"""`Meeting`: the machines that measure together, one command on each.

They meet in a store of torch's (`TCPStore`) on the machine of the endpoint, which is
node 0. Each tells the others what it has, and all go on with everybody's.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import Any, TypeVar

import msgspec

from profiles.errors import RunFailed
from profiles.system import Endpoint, route_to

MEETING_S = 300.0  # that the first machine waits for the last
LEAVING_S = 10.0  # that node 0 waits for the others to have read all
POLL_S = 0.05
_ASK_S = 1.0  # to reach a store that may not be there yet
_FAILED = "failed"

T = TypeVar("T")


class Meeting:
    """Number *node* of *nodes*; alone, there is nobody to tell and no *store*."""

    def __init__(
        self, store: Any = None, *, node: int = 0, nodes: int = 1, place: str = ""
    ) -> None:
        self.store, self.node, self.nodes, self.place = store, node, nodes, place

    def share(self, name: str, value: T, *, wait_s: float = MEETING_S) -> tuple[T, ...]:
        """The *value* of every node, by number. *name* is told once.

        Raises RunFailed where a node gives up, or says nothing for *wait_s*.
        """
        if self.store is None:
            return (value,)
        self.store.set(f"{name}/{self.node}", msgspec.json.encode(value))
        keys = [f"{name}/{node}" for node in range(self.nodes)]
        _until(lambda: self._there(keys), wait_s, lambda: self._missing(keys))
        found = (self.store.get(key) for key in keys)
        return tuple(msgspec.json.decode(one, type=type(value)) for one in found)

    def leave(self, error: BaseException | None) -> None:
        """Tell the others of *error*; without one, node 0 stays until all have read."""
        if self.store is None:
            return
        with suppress(RuntimeError, RunFailed):  # it is gone, and so are they
            if error is not None:
                told = str(error) or type(error).__name__
                self.store.set(_FAILED, f"node {self.node} gave up: {told}")
            self.share("left", self.node, wait_s=LEAVING_S if self.node == 0 else 0.0)

    def _there(self, keys: list[str]) -> bool:
        if self.store.check([_FAILED]):
            raise RunFailed(self.store.get(_FAILED).decode(errors="replace"))
        return bool(self.store.check(keys))

    def _missing(self, keys: list[str]) -> str:
        here = sum(self.store.check([key]) for key in keys)
        return f"{here} of {self.nodes} machines are at {self.place}"


@contextmanager
def meeting(endpoint: Endpoint | None, nodes: int) -> Iterator[Meeting]:
    """The machines that were told the same *endpoint*; alone without one.

    Raises RunFailed where they do not meet, and as `route_to`.
    """
    met = Meeting() if endpoint is None else _met(endpoint, nodes)
    try:
        yield met
    except BaseException as error:
        met.leave(error)
        raise
    met.leave(None)


def _met(endpoint: Endpoint, nodes: int) -> Meeting:
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")  # addresses without names
    route = route_to(endpoint)
    store = _served(endpoint) if route is None or route.here else None
    if store is not None:
        return Meeting(store, nodes=nodes, place=str(endpoint))
    store = _reached(endpoint)
    try:
        node = store.add("arrived", 1)
    except RuntimeError as error:  # PyTorch's own, with a stack of addresses
        raise RunFailed(
            f"the machines at {endpoint} were done before this one came; start the "
            "command on all of them at about the same time"
        ) from error
    if node >= nodes:
        raise RunFailed(
            f"more machines than --nnodes {nodes} came to {endpoint}; start the "
            "command on as many, or measure elsewhere with another port"
        )
    return Meeting(store, node=node, nodes=nodes, place=str(endpoint))


def _served(endpoint: Endpoint) -> Any:
    """The store, served by this process; None where the port is another's."""
    from torch._C._distributed_c10d import TCPStore

    try:
        return TCPStore(
            endpoint.host, endpoint.port, is_master=True, wait_for_workers=False
        )
    except RuntimeError:
        return None


def _reached(endpoint: Endpoint) -> Any:
    """The store that another machine serves, as soon as it does."""
    from torch._C._distributed_c10d import TCPStore

    place = (endpoint.host, endpoint.port)

    def answers() -> bool:
        with suppress(OSError), socket.create_connection(place, timeout=_ASK_S):
            return True
        return False

    _until(answers, MEETING_S, lambda: f"nobody is at {endpoint}")
    wait = timedelta(seconds=MEETING_S)
    try:
        return TCPStore(endpoint.host, endpoint.port, is_master=False, timeout=wait)
    except RuntimeError as error:
        raise RunFailed(
            f"what answers at {endpoint} is not a rendezvous of meshwright"
        ) from error


def _until(done: Callable[[], bool], wait_s: float, what: Callable[[], str]) -> None:
    """Ask again and again: a wait inside torch would not hear Ctrl-C."""
    end_s = time.monotonic() + wait_s
    while not done():
        if time.monotonic() > end_s:
            raise RunFailed(f"after {wait_s:.0f} s {what()}")
        time.sleep(POLL_S)
