"""1F1B of many pipelines of unlike stages at once, as `costmodel.timeline` runs one.

    start = max(end of the pass before on its stage, arrival of what it awaits)
    arrival = max(end of the sender, the link is free) + half the way there and back

Pipelines have as many stages and micro-batches; each pass is one array over them.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from costmodel.action import Kind
from costmodel.program import program_of
from costmodel.shape import COMPUTE

Array = NDArray[Any]
AT_ONCE: Final = 2_000_000  # passes of all pipelines that are run together


def ends_s(
    forward_s: Array, backward_s: Array, ways_s: Array, micro_batches: int
) -> Array:
    """[pipeline, stage] → when the last backward ends; of seconds [pipeline, stage] and
    of ways to the next stage and back [pipeline, stage but the last]."""
    pipelines, stages = forward_s.shape
    if stages == 1:
        return micro_batches * (forward_s + backward_s)
    some = max(AT_ONCE // (2 * stages * micro_batches), 1)
    found = [
        _ends_s(
            forward_s[first : first + some].T,
            backward_s[first : first + some].T,
            ways_s[first : first + some].T / 2,
            micro_batches,
        )
        for first in range(0, pipelines, some)
    ]
    return np.concatenate(found, axis=1).T if found else forward_s


def _ends_s(
    forward_s: Array, backward_s: Array, way_s: Array, micro_batches: int
) -> Array:
    """[stage, pipeline]; all arguments too."""
    stages, pipelines = forward_s.shape
    program = program_of("1f1b", stages, 1, micro_batches)
    kinds, slots = np.divmod(program.ordered_rows, program.shape.slots)
    forward = (kinds == COMPUTE.index(Kind.F)).tolist()
    free = np.zeros((stages, pipelines))
    link_free: dict[int, Array] = {}
    arrived = np.zeros((len(forward) + 1, pipelines))  # the first awaits nothing
    steps = zip(
        program.awaits, slots.tolist(), forward, program.links.tolist(), strict=True
    )
    for number, (awaited, stage, there, link) in enumerate(steps, start=1):
        end = free[stage]
        if awaited:
            np.maximum(end, arrived[awaited], out=end)
        end += forward_s[stage] if there else backward_s[stage]
        if link == program.no_link:
            continue
        sent = arrived[number]
        busy = link_free.get(link)
        np.maximum(end, 0.0 if busy is None else busy, out=sent)
        sent += way_s[stage] if there else way_s[stage - 1]
        link_free[link] = sent
    return free
