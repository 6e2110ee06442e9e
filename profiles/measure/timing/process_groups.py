"""Process groups for the exchanges: by ranks and nodes, each made once."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from profiles.measure.timing.buffers import Arena
from profiles.measure.timing.collectives import Works, call
from profiles.measure.timing.tasks import Exchange, Request


class Groups:
    """Finds the group that a rank is in; every rank makes all of them, as it must."""

    def __init__(self, request: Request, rank: int) -> None:
        self.rank = rank
        wanted = sorted({(one.ranks, one.nodes) for one in request.exchanges})
        self.made = {
            (ranks, nodes): [
                (peers, _made(peers)) for peers in groups(ranks, nodes, request)
            ]
            for ranks, nodes in wanted
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


def _made(peers: list[int]) -> Any:
    import torch.distributed as dist

    return dist.new_group(peers)
