"""`runtime.pipeline.p2p`: receives ahead, sends let go in time, and no deadlock."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist

from costmodel.schedule.action import Action, Kind
from runtime.pipeline import p2p as transfer
from runtime.pipeline.p2p import AWAY, Arrival, Links
from tests.runtime import transfer_cases
from tests.runtime.ranks import on_ranks

RECEIVES = (Kind.RECV_F, Kind.RECV_B)


class Group:
    """Rank 1 of a pipeline of three, of which the job has ranks 4, 5, 6."""

    def rank(self) -> int:
        return 1


class Log:
    """Stands for `torch.distributed`; writes down what is asked of it."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def work(self, name: str) -> Any:
        log = self

        class Work:
            def wait(self) -> None:
                log.lines.append(f"wait {name}")

        return Work()

    def isend(self, tensor: Any, *, dst: int, group: Any, tag: int) -> Any:
        self.lines.append(f"send {tag} to {dst} by {group}")
        return self.work(f"send {tag}")

    def irecv(self, tensor: Any, *, src: int, group: Any, tag: int) -> Any:
        self.lines.append(f"post {tag} from {src} by {group}")
        return self.work(f"receive {tag}")


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> Log:
    made = Log()
    monkeypatch.setattr(dist, "isend", made.isend)
    monkeypatch.setattr(dist, "irecv", made.irecv)
    monkeypatch.setattr(dist, "get_process_group_ranks", lambda group: [4, 5, 6])
    monkeypatch.setattr(
        dist, "new_group", lambda ranks, timeout: "{}-{}".format(*ranks)
    )
    monkeypatch.setattr(transfer, "_pipelines", lambda own: [own, [7, 8, 9]])
    monkeypatch.setattr(transfer, "_timeout", lambda: None)
    return made


def arrivals(*names: str) -> Iterator[Arrival]:
    for name in names:
        yield Arrival(
            action=Action.parse(name),
            shape=(2,),
            dtype=torch.float32,
            device=torch.device("cpu"),
        )


def tag(name: str, stages: int = 3) -> int:
    action = Action.parse(name)
    assert action.micro_batch is not None
    row = action.micro_batch * stages + action.stage
    return 2 * row + (action.kind is Kind.RECV_B)


def middle() -> Links:
    group: Any = Group()
    return Links(group, (0, 1, 2))


def test_the_next_receive_is_posted_before_this_one_is_waited_for(log: Log) -> None:
    links = middle()
    links.expect(arrivals("1RECV_F0", "1RECV_B0", "1RECV_F1"))
    first, second, third = tag("1RECV_F0"), tag("1RECV_B0"), tag("1RECV_F1")
    assert log.lines == [f"post {first} from 4 by 4-5"]
    links.receive(Action.parse("1RECV_F0"))
    links.receive(Action.parse("1RECV_B0"))
    links.receive(Action.parse("1RECV_F1"))
    assert log.lines[1:] == [
        f"post {second} from 6 by 6-5",
        f"wait receive {first}",
        f"post {third} from 4 by 4-5",
        f"wait receive {second}",
        f"wait receive {third}",
    ]


def test_few_sends_to_a_neighbour_are_on_their_way_at_once(log: Log) -> None:
    links = middle()
    for number in range(AWAY):
        links.send(Action.parse(f"1SEND_F{number}"), torch.ones(2))
        links.send(Action.parse(f"1SEND_B{number}"), torch.ones(2))
    assert not any("wait" in line for line in log.lines)
    links.send(Action.parse(f"1SEND_B{AWAY}"), torch.ones(2))
    assert log.lines[2 * AWAY :] == [
        f"wait send {tag('0RECV_B0')}",
        f"send {tag(f'0RECV_B{AWAY}')} to 4 by 5-4",
    ]


def test_the_end_of_a_step_waits_for_what_is_still_away(log: Log) -> None:
    links = middle()
    names = ("1SEND_F0", "1SEND_B0", "1SEND_F1")
    for name in names:
        links.send(Action.parse(name), torch.ones(2))
    links.finish()
    waited = [tag(name) for name in ("2RECV_F0", "2RECV_F1", "0RECV_B0")]
    assert log.lines[3:] == [f"wait send {number}" for number in waited]
    links.finish()
    assert len(log.lines) == 6


def test_no_two_messages_of_a_step_have_one_tag(log: Log) -> None:
    links = middle()
    received = [
        Action(kind=kind, stage=stage, micro_batch=number)
        for kind in RECEIVES
        for stage in range(3)
        for number in range(5)
    ]
    assert len({links._tag(action) for action in received}) == len(received)


def test_each_direction_of_each_pair_has_a_group(log: Log) -> None:
    assert sorted(map(str, middle().groups)) == ["4-5", "5-4", "5-6", "6-5"]


def test_neighbours_send_to_each_other_at_once() -> None:
    for rank in on_ranks(2, transfer_cases.both_ways):
        assert rank == transfer_cases.EXPECTED
