"""Collectives and messages between ranks, each timed for itself, and their groups."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from profiles.measure.timing.operands import Arena
from profiles.measure.timing.tasks import Exchange, Request, Tensor

ELEMENT_BYTES = 4  # payloads are fp32
Works = Sequence[Any]  # what is to be waited for


def call(
    exchange: Exchange, group: Any, peers: list[int], rank: int, arena: Arena
) -> Callable[[], Works]:
    """What begins one call of *exchange* within *group* (global ranks *peers*).

    Each call takes the next buffers of the arena: what is sent was just made by
    something else in training, and is in no cache of the sender's socket by then.
    """
    import torch.distributed as dist

    size = max(exchange.size_bytes // ELEMENT_BYTES, exchange.ranks)
    part = size // exchange.ranks
    whole = part * exchange.ranks

    # torch is giving them shorter names
    gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
    scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
    deal, later = arena.deal, {"group": group, "async_op": True}
    calls: dict[str, Callable[[], Works]] = {
        "all_reduce": lambda: [dist.all_reduce(deal(whole), **later)],
        "all_gather": lambda: [gather(deal(whole), deal(part), **later)],
        "reduce_scatter": lambda: [scatter(deal(part), deal(whole), **later)],
        "all_to_all": lambda: [
            dist.all_to_all_single(deal(whole), deal(whole), **later)
        ],
        "send": lambda: _ping_pong(deal(whole), deal(whole), peers, rank, group),
        "shift": lambda: _shift(deal(whole), deal(whole), peers, rank, group),
    }
    return calls[exchange.collective]


def ways(collective: str) -> int:
    """How many times its bytes one call moves: there and back is two messages."""
    return 2 if collective == "send" else 1


def finish(works: Works) -> None:
    """Wait until a call is over."""
    for work in works:
        if work is not None:
            work.wait()


def _ping_pong(
    out: Tensor, back: Tensor, peers: list[int], rank: int, group: Any
) -> Works:
    """There and back between two ranks, by isend and irecv as a pipeline does it."""
    import torch.distributed as dist

    first, second = peers
    if rank == first:
        coming = dist.irecv(back, second, group=group)
        return [dist.isend(out, second, group=group), coming]
    finish([dist.irecv(back, first, group=group)])
    return [dist.isend(out, first, group=group)]


def _shift(
    came: Tensor, sent: Tensor, peers: list[int], rank: int, group: Any
) -> Works:
    """To the next rank and from the one before, all at once: a step of a ring."""
    import torch.distributed as dist

    place = peers.index(rank)
    after, before = peers[(place + 1) % len(peers)], peers[place - 1]
    return dist.batch_isend_irecv(
        [
            dist.P2POp(dist.isend, sent, after, group),
            dist.P2POp(dist.irecv, came, before, group),
        ]
    )


class Groups:
    """Finds the group that a rank is in; every rank makes all of them, as it must."""

    def __init__(self, request: Request, rank: int) -> None:
        import torch.distributed as dist

        self.rank = rank
        wanted = sorted({(one.ranks, one.nodes) for one in request.exchanges})
        self.made: dict[tuple[int, int], list[tuple[list[int], Any]]] = {
            sizes: [(peers, dist.new_group(peers)) for peers in groups(*sizes, request)]
            for sizes in wanted
        }

    def call(self, exchange: Exchange, arena: Arena) -> Callable[[], Works] | None:
        """What begins one call of *exchange* by this rank; None if it has no part."""
        made = self.made[exchange.ranks, exchange.nodes]
        for peers, group in made[: exchange.groups]:
            if self.rank in peers:
                return call(exchange, group, peers, self.rank, arena)
        return None


def groups(ranks: int, nodes: int, request: Request) -> Iterator[list[int]]:
    """Groups of *ranks* on *nodes* consecutive nodes, as many consecutive ranks on
    each; those of the first nodes come first.

    Nodes hold their ranks in a row: with two on each of two nodes, groups of two on two
    nodes are 0 and 2, and 1 and 3.
    """
    local, each = request.local_ranks, ranks // nodes
    for node in range(0, request.nodes - nodes + 1, nodes):
        for first in range(0, local - each + 1, each):
            yield [
                (node + there) * local + first + place
                for there in range(nodes)
                for place in range(each)
            ]
