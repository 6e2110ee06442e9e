"""Where machines meet: a foreign program on the port is known, a launcher is too; who
is gone is missed, and who loses the others tries again."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from threading import Thread
from time import monotonic
from types import SimpleNamespace
from typing import Any

import pytest

from profiles.errors import RunFailed
from profiles.system.network import Endpoint
from runtime.launch import launcher
from runtime.launch.agent import NotMet
from runtime.launch.launcher import require_launcher
from runtime.launch.rendezvous import Watchful

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


class Participants:
    """What is used of torch's rendezvous: three machines that met."""

    def __init__(self) -> None:
        self.state = SimpleNamespace(participants={"a": 0, "b": 1, "c": 2})
        self._state_holder, self.waiting = self, 0

    def next_rendezvous(self) -> SimpleNamespace:
        return SimpleNamespace(world_size=len(self.state.participants))

    def num_nodes_waiting(self) -> int:
        return self.waiting


def test_who_is_gone_counts_as_one_that_waits() -> None:
    inner: Any = Participants()
    watchful = Watchful(inner)
    assert watchful.num_nodes_waiting() == 0  # nobody has met yet
    watchful.next_rendezvous()
    assert watchful.num_nodes_waiting() == 0
    inner.waiting = 1
    assert watchful.num_nodes_waiting() == 1
    del inner.state.participants["b"]
    assert watchful.num_nodes_waiting() == 2
    watchful.next_rendezvous()
    assert watchful.num_nodes_waiting() == 1


def test_who_loses_the_others_meets_them_again_for_a_while(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock, tries, asked = [0.0], [0], [0]

    def there() -> bool:
        asked[0] += 1
        return asked[0] % 3 == 0

    def meeting(*, until_try: int, lasts_s: float) -> None:
        tries[0] += 1
        clock[0] += lasts_s
        if tries[0] < until_try:
            raise NotMet("lost")

    def met(patience_s: float, **of: float) -> int:
        """How often they tried."""
        tries[0] = 0
        launcher._met_until_done(partial(meeting, **of), there, patience_s)  # type: ignore[arg-type]
        return tries[0]

    def slept(seconds: float) -> None:
        clock[0] += seconds

    monkeypatch.setattr(launcher.time, "monotonic", lambda: clock[0])
    monkeypatch.setattr(launcher.time, "sleep", slept)
    with pytest.raises(NotMet):
        met(0.0, until_try=9, lasts_s=1)
    assert (tries, asked) == ([1], [0])
    assert met(100.0, until_try=9, lasts_s=1) == 9
    assert asked == [27]  # it waited for somebody to be there
    with pytest.raises(NotMet):
        met(100.0, until_try=200, lasts_s=1)
    assert 24 <= tries[0] <= 27  # each a second, two waits and a pause
    assert met(100.0, until_try=9, lasts_s=1000) == 9  # each time they had trained
