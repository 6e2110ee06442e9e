"""1F1B of many pipelines of unlike stages at once, as `costmodel.timeline.timeline`
runs one.

    start = max(end of the pass before on its stage, arrival of what it awaits)
    arrival = max(end of the sender, the link is free) + half the way there and back

Pipelines have as many stages and micro-batches; each pass is one array over them, and
what is on its way lies where something lay that has arrived.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final, NamedTuple

import numpy as np

from costmodel.schedule import COMPUTE, Kind, program_of
from profiles.arrays import Array

AT_ONCE: Final = 8_192  # pipelines that are run together


def ends_s(
    forward_s: Array, backward_s: Array, ways_s: Array, micro_batches: int
) -> Array:
    """[pipeline, stage] → when the last backward ends; of seconds [pipeline, stage] and
    of ways to the next stage and back [pipeline, stage but the last]."""
    pipelines, stages = forward_s.shape
    if stages == 1:
        return micro_batches * (forward_s + backward_s)
    found = [
        _ends_s(
            forward_s[first : first + AT_ONCE].T.copy(),
            backward_s[first : first + AT_ONCE].T.copy(),
            ways_s[first : first + AT_ONCE].T / 2,
            micro_batches,
        )
        for first in range(0, pipelines, AT_ONCE)
    ]
    return np.concatenate(found, axis=1).T if found else forward_s


def _ends_s(
    forward_s: Array, backward_s: Array, way_s: Array, micro_batches: int
) -> Array:
    """[stage, pipeline]; all arguments too."""
    stages, pipelines = forward_s.shape
    steps, places, links = _steps(stages, micro_batches)
    free = np.zeros((stages, pipelines))
    link_free = np.zeros((links, pipelines))
    arrived = np.zeros((places, pipelines))
    for stage, there, awaited, place, link in steps:
        end = free[stage]
        if awaited >= 0:
            np.maximum(end, arrived[awaited], out=end)
        end += forward_s[stage] if there else backward_s[stage]
        if place < 0:
            continue
        busy = link_free[link]
        np.maximum(end, busy, out=busy)
        busy += way_s[stage] if there else way_s[stage - 1]
        arrived[place] = busy
    return free


class _Step(NamedTuple):
    """A pass of a stage, forward or not; where what it awaits has arrived, where what
    it sends will, and over which link (−1: nothing)."""

    stage: int
    there: bool
    awaited: int
    place: int
    link: int


@lru_cache(maxsize=256)
def _steps(stages: int, micro_batches: int) -> tuple[list[_Step], int, int]:
    """The passes in an order that they can run in; how many places and links."""
    program = program_of("1f1b", stages, 1, micro_batches)
    kinds, slots = np.divmod(program.ordered_rows, program.shape.slots)
    forward = (kinds == COMPUTE.index(Kind.F)).tolist()
    at: dict[int, int] = {}  # the number of a pass whose result is on its way
    empty: list[int] = []
    links: dict[int, int] = {}
    steps, places = list[_Step](), 0
    each = zip(
        program.awaits, slots.tolist(), forward, program.links.tolist(), strict=True
    )
    for number, (awaited, stage, there, link) in enumerate(each, start=1):
        arrived = at.pop(awaited) if awaited else -1
        if arrived >= 0:
            empty.append(arrived)
        place = -1
        if link != program.no_link:
            if not empty:
                empty.append(places)
                places += 1
            place = at[number] = empty.pop()
        used = links.setdefault(link, len(links)) if place >= 0 else -1
        steps.append(_Step(stage, there, arrived, place, used))
    return steps, places, len(links)
