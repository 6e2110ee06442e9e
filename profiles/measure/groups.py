"""Process groups for the exchanges: consecutive ranks, by size, each made once."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from profiles.measure.arena import Arena
from profiles.measure.collectives import call
from profiles.measure.tasks import Exchange, Request


class Groups:
    """Finds the group that a rank is in; every rank makes all of them, as it must."""

    def __init__(self, request: Request, rank: int) -> None:
        self.rank = rank
        self.made = {
            size: list(_made(size, request.ranks))
            for size in sorted({one.ranks for one in request.exchanges})
        }

    def call(self, exchange: Exchange, arena: Arena) -> Callable[[], object] | None:
        """One call of *exchange* by this rank, or None where it has no part in it."""
        for peers, group in self.made[exchange.ranks][: exchange.groups]:
            if self.rank in peers:
                return call(exchange, group, peers, self.rank, arena)
        return None


def _made(size: int, ranks: int) -> Iterator[tuple[list[int], Any]]:
    import torch.distributed as dist

    for first in range(0, ranks - size + 1, size):
        peers = list(range(first, first + size))
        yield peers, dist.new_group(peers)
