"""`runtime.launch.launcher`: a foreign program on the port is known, a launcher is
too."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from threading import Thread
from time import monotonic

import pytest

from profiles.errors import RunFailed
from profiles.system.network import Endpoint
from runtime.launch.launcher import require_launcher

HERE = "127.0.0.1"
Answer = Callable[[socket.socket], object]


@contextmanager
def listening(answer: Answer) -> Iterator[Endpoint]:
    """A program that does *answer* with everybody who comes."""
    with ExitStack() as kept, socket.create_server((HERE, 0)) as server:

        def serve() -> None:
            with suppress(OSError):
                while True:
                    caller = kept.enter_context(server.accept()[0])
                    answer(caller)

        Thread(target=serve, daemon=True).start()
        yield Endpoint(host=HERE, port=server.getsockname()[1])
        with suppress(OSError):
            server.shutdown(socket.SHUT_RDWR)


@pytest.mark.parametrize(
    "answer",
    [
        lambda caller: None,
        lambda caller: caller.close(),
        lambda caller: caller.sendall(b"SSH-2.0-OpenSSH_9.2p1\r\n"),
        lambda caller: caller.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n"),
    ],
    ids=["silent", "hangs up", "ssh", "http"],
)
def test_a_foreign_program_is_told(answer: Answer) -> None:
    with listening(answer) as endpoint:
        began = monotonic()
        with pytest.raises(RunFailed, match=f"another program uses {endpoint}.*port"):
            require_launcher(endpoint, within_s=1.0)
        assert monotonic() - began < 5


def test_a_launcher_is_met_and_nobody_is_waited_for() -> None:
    from torch._C._distributed_c10d import TCPStore

    store = TCPStore(HERE, 0, is_master=True, wait_for_workers=False)
    require_launcher(Endpoint(host=HERE, port=store.port))
    with socket.create_server((HERE, 0)) as free:
        port = free.getsockname()[1]
    require_launcher(Endpoint(host=HERE, port=port))
