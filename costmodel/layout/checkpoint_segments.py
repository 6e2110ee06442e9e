"""Segments: neighbouring layers that are made again together, from one kept input.

    n layers in s = √n segments, the longer ones first      → `counted`, `longest`
    kept    s inputs, and while backward is in a segment what its n/s layers save
    done    every layer once more: with backward twice forward, 4/3 of the time

After Chen et al. (2016), section 4. In a plan, a layer that is made again whole and
whose input is made again too belongs to the segment of the layer before it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from costmodel.layout.layout import Stage
from costmodel.layout.retention import CORE, EVERYTHING, Retention, recompute
from profiles.arrays import Array
from profiles.errors import InvalidSpec
from profiles.models import Block


def counted(layers: Any) -> Array:
    """How many segments so many layers fall into: √n, rounded; numbers or arrays.

    >>> int(counted(1000)), int(longest(1000))
    (32, 32)
    """
    return np.asarray(np.rint(np.sqrt(layers)), dtype=int)


def longest(layers: Any) -> Array:
    """Layers of the longest segment."""
    return np.asarray(-(-np.asarray(layers) // np.maximum(counted(layers), 1)))


def first_of_each(layers: int) -> frozenset[int]:
    """Which of so many layers keep their input: the first of every segment.

    >>> sorted(first_of_each(8))
    [0, 3, 6]
    """
    segments = int(counted(layers))
    base, longer = divmod(layers, max(segments, 1))
    return frozenset(number * base + min(number, longer) for number in range(segments))


def inner(block: Block) -> Retention:
    """Of a layer inside a segment: nothing is kept, not even its input."""
    assert block.entry is not None, "a numbered layer has an input"
    return recompute(EVERYTHING, block.entry.name)


def remakes_input(retention: Retention, block: Block) -> bool:
    """Whether the layer's input is made again by the layers before it."""
    return block.entry is not None and block.entry.name in retention.recomputed


def segments_of(stage: Stage, blocks: Sequence[Block]) -> tuple[range, ...]:
    """Runs of several layers of *stage*, whose blocks are *blocks*, by place in it.

    Raises InvalidSpec for a layer whose input nobody makes again.
    """
    plans = {id(plan): plan for plan in stage.plans}.values()
    if not any(plan.retention.recomputed - {EVERYTHING, CORE} for plan in plans):
        return ()
    inside = [
        place
        for place, (block, plan) in enumerate(zip(blocks, stage.plans, strict=True))
        if remakes_input(plan.retention, block)
    ]
    for place in inside:
        _require_made(stage, place)
    return tuple(_runs(inside))


def _runs(inside: Sequence[int]) -> Iterator[range]:
    """Each run of layers inside a segment, with the layer that it begins at."""
    if not inside:
        return
    start = inside[0]
    for here, after in pairwise((*inside, -1)):
        if after != here + 1:
            yield range(start - 1, here + 1)
            start = after


def _require_made(stage: Stage, place: int) -> None:
    """Raise InvalidSpec if the layer before *place* does not run again whole."""
    name = stage.layers[place]
    if EVERYTHING not in stage.plans[place].retention.recomputed:
        raise InvalidSpec(
            f"layer {name} recomputes its input but not all of itself: recompute "
            f"{EVERYTHING!r} too, or keep its input"
        )
    before = place - 1
    if before < 0 or EVERYTHING not in stage.plans[before].retention.recomputed:
        which = f"layer {stage.layers[before]}" if place else "the stage before it"
        raise InvalidSpec(
            f"layer {name} does not keep its input, which {which} does not make again: "
            f"recompute {EVERYTHING!r} there too, or keep the input"
        )
