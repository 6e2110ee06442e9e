"""Whether what listens where machines are to meet is a launcher.

A foreign program that has the port takes the connection, and torch's client waits for
an answer that never comes, or asks again for many minutes. So it is asked once before,
on a thread that is left behind if it hangs.
"""

from __future__ import annotations

import socket
from contextlib import suppress
from datetime import timedelta
from threading import Event, Thread
from typing import Final

from profiles.errors import RunFailed
from profiles.system import Endpoint

ANSWER_S: Final = 20.0  # that a launcher on a busy machine may take
_CONNECT_S: Final = 5.0


def require_launcher(endpoint: Endpoint, within_s: float = ANSWER_S) -> None:
    """Raise RunFailed where somebody at *endpoint* takes connections and does not
    answer as a launcher's store does. If nobody is there yet, one is still to come."""
    if not _taken(endpoint):
        return
    answered = Event()
    arguments = (endpoint, within_s, answered)
    Thread(target=_ask, args=arguments, daemon=True).start()
    if not answered.wait(within_s):
        raise RunFailed(
            f"another program has {endpoint}: it takes connections and does not answer "
            "as a launcher would; end it there, or give every machine another port"
        )


def _taken(endpoint: Endpoint) -> bool:
    place = endpoint.host, endpoint.port
    with suppress(OSError), socket.create_connection(place, timeout=_CONNECT_S):
        return True
    return False


def _ask(endpoint: Endpoint, within_s: float, answered: Event) -> None:
    from torch._C._distributed_c10d import TCPStore

    with suppress(Exception):
        TCPStore(
            endpoint.host,
            endpoint.port,
            is_master=False,
            wait_for_workers=False,
            timeout=timedelta(seconds=within_s),
        )
        answered.set()
