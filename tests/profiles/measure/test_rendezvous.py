"""Machines that measure together: they meet, tell each other, and fail together."""

from __future__ import annotations

import socket
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from threading import Event
from typing import Any

import pytest

from profiles.errors import Contradiction, RunFailed, Unsupported
from profiles.measure import rendezvous as room
from profiles.measure.rendezvous import Meeting, meeting
from profiles.measure.session import (
    Node,
    Question,
    described,
    rank_memory_bytes,
    require_alike,
)
from profiles.system.network import Endpoint
from tests.support.small_jobs import job

NODE = Node(
    asked={"--nproc": "1"},
    device="cpu-x",
    boot="one",
    cores=2,
    rank_memory_bytes=8e9,
    cache_bytes=1e6,
    facts={},
)


@pytest.fixture
def endpoint() -> Endpoint:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return Endpoint(host="127.0.0.1", port=free.getsockname()[1])


def together(count: int, one: Callable[[], Any]) -> list[Any]:
    """What *count* machines, here threads, come to; an error is what they raise."""

    def caught(_: int) -> Any:
        try:
            return one()
        except RunFailed as error:
            return error

    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(caught, range(count)))


def test_alone_there_is_nobody_to_tell() -> None:
    with meeting(None, 1) as met:
        assert met.share("name", 7) == (7,)


def test_everybody_hears_everybody_in_one_order(endpoint: Endpoint) -> None:
    def one() -> tuple[int, tuple[int, ...], tuple[Node, ...]]:
        with meeting(endpoint, 3) as met:
            told = replace(NODE, cores=met.node)
            return met.node, met.share("number", met.node), met.share("node", told)

    found = together(3, one)
    assert sorted(node for node, _, _ in found) == [0, 1, 2]
    for _, numbers, nodes in found:
        assert numbers == (0, 1, 2)
        assert [node.cores for node in nodes] == [0, 1, 2]


def test_who_gives_up_tells_the_others_why(endpoint: Endpoint) -> None:
    def one() -> None:
        with meeting(endpoint, 2) as met:
            if met.node == 1:
                raise RunFailed("its disk is full")
            met.share("result", 0)

    said = sorted(str(error) for error in together(2, one))
    assert said == ["its disk is full", "node 1 gave up: its disk is full"]


def test_nobody_waits_for_ever_for_the_last(endpoint: Endpoint) -> None:
    with (
        pytest.raises(RunFailed, match=rf"1 of 2 machines are at {endpoint}"),
        meeting(endpoint, 2) as met,
    ):
        met.share("node", 0, wait_s=0.1)


def test_nobody_waits_for_ever_for_the_first(
    endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(room, "MEETING_S", 0.1)
    with pytest.raises(RunFailed, match=f"nobody is at {endpoint}"):
        room._reached(endpoint)


def test_a_machine_too_many_is_told(endpoint: Endpoint) -> None:
    told = Event()  # until then the two that met stay

    def one() -> None:
        try:
            with meeting(endpoint, 2) as met:
                met.share("node", met.node)
                told.wait(10)
        finally:
            told.set()

    said = [str(error) for error in together(3, one) if error is not None]
    assert any("more machines than --nnodes 2" in line for line in said)


def test_who_comes_when_the_others_leave_is_told(
    endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Gone:
        def add(self, *_: object) -> int:
            raise RuntimeError("Failed to recv, got 0 bytes")

    monkeypatch.setattr(room, "_served", lambda _: None)
    monkeypatch.setattr(room, "_reached", lambda _: Gone())
    with pytest.raises(RunFailed, match="were done before this one came"):
        room._met(endpoint, 2)


def test_machines_are_asked_the_same_and_are_alike() -> None:
    require_alike([NODE, NODE])
    with pytest.raises(Contradiction, match=r"--nproc is 1 on node 0 and 2 on node 1"):
        require_alike([NODE, replace(NODE, asked={"--nproc": "2"})])
    with pytest.raises(Unsupported, match=r"node 1 cpu-y"):
        require_alike([NODE, replace(NODE, device="cpu-y")])


def test_parts_of_one_machine_share_its_memory() -> None:
    other = replace(NODE, boot="other", rank_memory_bytes=6e9)
    assert rank_memory_bytes([NODE, other], "cpu") == 6e9
    assert rank_memory_bytes([NODE, NODE], "cpu") == 4e9
    assert rank_memory_bytes([NODE, NODE], "cuda") == 8e9


def test_this_machine_is_described() -> None:
    asked = Question(
        device="cpu", ranks=2, precisions=("fp32",), jobs=(job(),), quick=True
    )
    here = described(asked)
    assert here.asked["--nproc"] == "2"
    assert here.boot
    assert here.cores >= 1
    assert {"host cpu", "cores", "date", "command"} <= here.facts.keys()
    assert described(replace(asked, ranks=1)).asked != here.asked


def test_a_lone_meeting_is_left_without_a_word() -> None:
    Meeting().leave(RunFailed("nobody hears it"))
