"""Boundary tensors on their way between the pipeline ranks that share a model copy.

A send needs its receiver's buffer before a byte moves, on gloo and on NCCL alike, so
receives are posted one ahead of the stream: the next tensor travels while this one is
used. Each direction of each pair of neighbours has a process group of its own: NCCL
carries a communicator's messages out in order, and two ranks that sent to each other
over one communicator would wait for each other for ever. Messages of one direction are
received in the order they are sent (`costmodel.schedule.communication`).

A send keeps its tensor until it is done, and at most `AWAY` of them are on their way to
a neighbour at once: a further one waits for the oldest. With receives one ahead that
makes no step of the schedules longer, whatever stages and links cost (a law, tested).
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import torch
import torch.distributed as dist
from torch import Tensor

from costmodel.schedule import RECEIVED, Action, Kind, crosses

AHEAD: Final = 1  # receives posted beyond the one that is waited for
AWAY: Final = 2  # sends to a neighbour; the least that keeps the law
NUMBERED: Final = (
    2**20
)  # micro-batches apart; of a run that is not flushed there are more
_SENDER: Final = {received: -step for received, step in RECEIVED.values()}


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrival:
    """A message to come: the action that receives it, and the tensor it fills."""

    action: Action
    shape: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device


class Links:
    """This rank's links to its neighbours; every rank of the job builds one at once.

    *group* is the process group of the pipeline ranks, *holders* the pipeline rank of
    each virtual stage, once for each copy of the model.
    """

    def __init__(self, group: dist.ProcessGroup, *holders: Sequence[int]) -> None:
        self._holders = tuple(map(tuple, holders))
        self._rank = group.rank()
        self._ranks = dist.get_process_group_ranks(group)
        self._channels = self._opened()
        self._arrivals: Iterator[Arrival] = iter(())
        self._posted: deque[tuple[Action, Tensor, Any]] = deque()
        self._away: dict[int, deque[tuple[Tensor, Any]]] = defaultdict(deque)

    @property
    def groups(self) -> tuple[dist.ProcessGroup, ...]:
        """The process groups that messages of this rank travel in."""
        return tuple(self._channels.values())

    def expect(self, arrivals: Iterable[Arrival], *, goes_on: bool = False) -> None:
        """Begin a step that receives *arrivals*, in this order; where it *goes_on* from
        the one before, what that has sent is still on its way."""
        self._arrivals = iter(arrivals)
        self._posted.clear()
        if not goes_on:
            self._away.clear()
        for _ in range(AHEAD):
            self._post()

    def receive(self, action: Action) -> Tensor:
        """The tensor that RECV_F or RECV_B brings; waits for it."""
        self._post()
        expected, tensor, work = self._posted.popleft()
        assert expected == action, f"{action} is due, {expected} was posted"
        work.wait()
        return tensor

    def send(self, action: Action, tensor: Tensor) -> None:
        """Set a contiguous tensor on its way, as SEND_F or SEND_B."""
        kind, step = RECEIVED[action.kind]
        received = replace(action, kind=kind, stage=action.stage + step)
        target = self._holders[received.copy][received.stage]
        away = self._away[target]
        if len(away) == AWAY:
            self._wait_for_oldest(away)
        work = dist.isend(
            tensor,
            dst=self._ranks[target],
            group=self._channels[self._rank, target],
            tag=self._tag(received),
        )
        away.append((tensor, work))

    def finish(self) -> None:
        """Wait for all that is still on its way."""
        for away in self._away.values():
            while away:
                self._wait_for_oldest(away)

    @staticmethod
    def _wait_for_oldest(away: deque[tuple[Tensor, Any]]) -> None:
        _, work = away[0]
        work.wait()
        away.popleft()

    def _post(self) -> None:
        """Give the next message that is expected, if any, its buffer."""
        arrival = next(self._arrivals, None)
        if arrival is None:
            return
        action = arrival.action
        source = self._holders[action.copy][action.stage + _SENDER[action.kind]]
        tensor = torch.empty(arrival.shape, dtype=arrival.dtype, device=arrival.device)
        work = dist.irecv(
            tensor,
            src=self._ranks[source],
            group=self._channels[source, self._rank],
            tag=self._tag(action),
        )
        self._posted.append((action, tensor, work))

    def _tag(self, received: Action) -> int:
        """A number for each message of a step; NCCL has none and goes by the order."""
        assert received.micro_batch is not None
        number = received.micro_batch % NUMBERED
        row = number * len(self._holders[0]) + received.stage
        return 2 * row + (received.kind is Kind.RECV_B)

    def _opened(self) -> dict[tuple[int, int], dist.ProcessGroup]:
        """A group for each directed pair of neighbours that this rank is of.

        PyTorch has every rank of the job open every group, in one order.
        """
        pairs = {
            pair
            for held_by in self._holders
            for stage in range(len(held_by))
            if crosses(held_by, stage)
            for pair in _both_ways(held_by[stage], held_by[stage + 1])
        }
        channels = {}
        for row in _pipelines(self._ranks) if pairs else ():
            for pair in sorted(pairs):
                members = [row[rank] for rank in pair]
                opened = dist.new_group(members, timeout=_timeout())
                if row == self._ranks and self._rank in pair:
                    channels[pair] = opened
        return channels


def _pipelines(own: list[int]) -> list[list[int]]:
    """The ranks of every pipeline of the job, *own* among them."""
    everyone: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, own)
    return [list(row) for row in sorted(set(map(tuple, everyone)))]


def _both_ways(one: int, two: int) -> tuple[tuple[int, int], tuple[int, int]]:
    return (one, two), (two, one)


def _timeout() -> Any:
    """How long the whole job's process group waits; new groups do not inherit it."""
    world = dist.group.WORLD
    assert world is not None
    backend = world._get_backend(world._device_types[0])
    return getattr(getattr(backend, "options", None), "_timeout", None)
