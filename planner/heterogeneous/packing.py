"""Which fast domain of an island each stage lies in: packed from the last stage on.

A stage smaller than a domain gets the smallest free block of an opened domain that
holds it, a larger one the next domains; what is left of a block is free in powers of
two. Sizes being such powers, no two free blocks are alike, so that all stages find room
where together they fill the island. Neighbours in one domain speak over its fast links.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import NamedTuple

Block = tuple[int, int]  # size, and the first device


class Packed(NamedTuple):
    """Free blocks of the domains so far, how many there are, and where the last stage
    that was packed begins (−1 if there is none)."""

    free: tuple[Block, ...] = ()
    domains: int = 0
    here: int = -1

    def take(self, size: int, domain: int) -> Packed:
        """With one more stage of *size* devices."""
        if size >= domain:
            return self._replace(
                domains=self.domains + -(-size // domain), here=self.domains * domain
            )
        room = [block for block in self.free if block[0] >= size]
        whole, start = min(room, default=(domain, self.domains * domain))
        free = [block for block in self.free if block[1] != start]
        left = size
        while left < whole:
            free.append((left, start + left))
            left *= 2
        opened = self.domains + (not room)
        return Packed(tuple(sorted(free)), opened, start)

    def alike(self, domain: int) -> Packed:
        """The same for all that is to come: domains are numbered as they come up."""
        seen: dict[int, int] = {}
        here = seen.setdefault(self.here // domain, 0) * domain
        free = tuple(
            (size, seen.setdefault(at // domain, len(seen)) * domain + at % domain)
            for size, at in self.free
        )
        return Packed(free, len(seen), here)


def starts(sizes: Sequence[int], domain: int, devices: int) -> list[int]:
    """The first device of stages of those *sizes* in model order, on an island of so
    many *devices*."""
    if not is_regular(domain, devices):
        return _by_size(sizes)
    packed, found = Packed(), list[int]()
    for size in reversed(sizes):
        packed = packed.take(size, domain)
        found.append(packed.here)
    return found[::-1]


def is_regular(domain: int, devices: int) -> bool:
    """Whether all stages find room: domains are alike, and powers of two."""
    used = min(domain, devices)
    return used & (used - 1) == 0 and devices % used == 0


def _by_size(sizes: Sequence[int]) -> list[int]:
    """The larger ones first."""
    found, taken = [0] * len(sizes), 0
    for place in sorted(range(len(sizes)), key=lambda one: -sizes[one]):
        found[place] = taken
        taken += sizes[place]
    return found


@cache
def ways(domain: int, sizes: tuple[int, ...]) -> Sequence[Sequence[tuple[int, bool]]]:
    """[way to have packed stages][size] → the way with one stage more before, and
    whether that lies in another domain than the one behind it. Way 0 is of none."""
    known = {Packed(): 0}
    every, found = [*known], []
    for way in every:  # which grows
        steps = []
        for size in sizes:
            after = way.take(size, domain)
            far = size >= domain or after.here // domain != way.here // domain
            alike = after.alike(domain)
            if alike not in known:
                known[alike] = len(every)
                every.append(alike)
            steps.append((known[alike], far))
        found.append(steps)
    return found
