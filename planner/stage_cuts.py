"""Cuts between stages moved by a layer, for as long as that helps.

The programme adds up what the simulation partly hides (a transfer behind a pass, a turn
at a slow link behind another), so that the best partition is near what it proposes, not
always among it. A climb over neighbours, the first better one taken: each cut, a layer
to either side.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import pairwise

from planner.stage_partition import Partition


def climbed(
    start: Partition, value: float, judge: Callable[[Partition], float]
) -> Iterator[Partition]:
    """Partitions from *start* on, which has that *value*, each better than the last; by
    *judge*, which says infinity of what is not to be had."""
    here, known = start, {start.parts}
    while True:
        for near in moved(here):
            if near.parts in known:
                continue
            known.add(near.parts)
            found = judge(near)
            if found < value:
                here, value = near, found
                yield here
                break
        else:
            return


def moved(partition: Partition) -> Iterator[Partition]:
    """*partition* with one cut a layer further, either way; no stage goes empty."""
    parts = partition.parts
    for place, (before, after) in enumerate(pairwise(parts)):
        for last in (before.last - 1, before.last + 1):
            if before.first <= last < after.last:
                pair = replace(before, last=last), replace(after, first=last + 1)
                yield replace(
                    partition, parts=(*parts[:place], *pair, *parts[place + 2 :])
                )
