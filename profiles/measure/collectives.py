"""Collectives and messages between ranks, each timed for itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from profiles.measure.arena import Arena
from profiles.measure.tasks import Exchange
from profiles.measure.tensors import Tensor

ELEMENT_BYTES = 4  # payloads are fp32


def call(
    exchange: Exchange, group: Any, peers: list[int], rank: int, arena: Arena
) -> Callable[[], object]:
    """One call of *exchange* within *group* (global ranks *peers*), as a function.

    Each call takes the next buffers of the arena: what is sent was just made by
    something else in training, and is in no cache of the sender's socket by then.
    """
    import torch.distributed as dist

    size = max(exchange.size_bytes // ELEMENT_BYTES, exchange.ranks)
    part = size // exchange.ranks
    whole = part * exchange.ranks

    def all_gather() -> object:
        return _all_gather(arena.deal(whole), arena.deal(part), group)

    def reduce_scatter() -> object:
        return _reduce_scatter(arena.deal(part), arena.deal(whole), group)

    def all_to_all() -> object:
        return dist.all_to_all_single(arena.deal(whole), arena.deal(whole), group=group)

    def send() -> None:
        _ping_pong(arena.deal(whole), arena.deal(whole), peers, rank, group)

    def shift() -> None:
        _shift(arena.deal(whole), arena.deal(whole), peers, rank, group)

    calls: dict[str, Callable[[], object]] = {
        "all_reduce": lambda: dist.all_reduce(arena.deal(whole), group=group),
        "all_gather": all_gather,
        "reduce_scatter": reduce_scatter,
        "all_to_all": all_to_all,
        "send": send,
        "shift": shift,
    }
    return calls[exchange.collective]


def ways(collective: str) -> int:
    """How many times its bytes one call moves: there and back is two messages."""
    return 2 if collective == "send" else 1


def _all_gather(whole: Tensor, part: Tensor, group: Any) -> object:
    import torch.distributed as dist

    gather: Any = getattr(dist, "all_gather_single", None)
    return (gather or dist.all_gather_into_tensor)(whole, part, group=group)


def _reduce_scatter(part: Tensor, whole: Tensor, group: Any) -> object:
    import torch.distributed as dist

    scatter: Any = getattr(dist, "reduce_scatter_single", None)
    return (scatter or dist.reduce_scatter_tensor)(part, whole, group=group)


def _ping_pong(
    out: Tensor, back: Tensor, peers: list[int], rank: int, group: Any
) -> None:
    """There and back between two ranks, by isend and irecv as a pipeline does it."""
    import torch.distributed as dist

    first, second = peers
    if rank == first:
        coming = dist.irecv(back, second, group=group)
        going = dist.isend(out, second, group=group)
    else:
        coming = dist.irecv(back, first, group=group)
        _wait(coming)
        going = dist.isend(out, first, group=group)
    _wait(going)
    if rank == first:
        _wait(coming)


def _shift(came: Tensor, sent: Tensor, peers: list[int], rank: int, group: Any) -> None:
    """To the next rank and from the one before, all at once: a step of a ring."""
    import torch.distributed as dist

    place = peers.index(rank)
    after, before = peers[(place + 1) % len(peers)], peers[place - 1]
    works = dist.batch_isend_irecv(
        [
            dist.P2POp(dist.isend, sent, after, group),
            dist.P2POp(dist.irecv, came, before, group),
        ]
    )
    for work in works:
        _wait(work)


def _wait(work: Any) -> None:
    if work is not None:
        work.wait()
