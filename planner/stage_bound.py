"""What no pipeline of unlike stages goes below: whole layers, whole meshes, the fill,
and what a stage holds at the least.

Stage s runs m micro-batches forward and backward; before its first, a micro-batch goes
forward through the stages before it, and after its last, one backward:

    T ≥ Σ_{i<s} t_i + m · t_s    for every stage s

Of all cuts of the layers into stages on the meshes of a menu, the least that this can
be: G(k, d), the least Σ t over stages that hold the first k layers on the first d
devices and none of which breaks T, grows from layer to layer, and T is possible if the
last layer is reached on the last device. T is then found by halving. A stage has two
micro-batches in flight, the last one has one: of their memory no more is asked
(`trip_bound` asks for as many as stages follow).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import gcd, inf
from typing import Any

import numpy as np
from numpy.typing import NDArray

from planner.stage_partition import Option, stages_sums

Array = NDArray[Any]
CLOSE = 2e-3  # of the bound: halving stops there
Kind = tuple[int, int, int]  # devices, and between which a stage of so many may lie


def cut_bound_s(
    options: Sequence[Option],
    busy_s: Sequence[Array],
    *,
    devices: int,
    micro_batches: int,
    at_least_s: float = 0.0,
    at_most_s: float,
) -> float:
    """Seconds that no partition takes less than, where *busy_s* [layers] of each option
    are its passes alone; *at_least_s* is known to be one such bound, and more than
    *at_most_s* is of no use.
    """
    unit, kinds = _kinds(options, busy_s, devices, micro_batches)

    def possible(most_s: float) -> bool:
        return _reaches(kinds, devices // unit, micro_batches, most_s)

    if not kinds:
        return at_most_s
    return halved(possible, at_least_s, at_most_s)


def halved(possible: Callable[[float], bool], low: float, high: float) -> float:
    """The largest number up to *high* known to be impossible, within `CLOSE`: *low* is
    one, and what is more than a possible one is possible."""
    if not possible(high):
        return high
    while high - low > CLOSE * high:
        middle = (low + high) / 2
        if possible(middle):
            high = middle
        else:
            low = middle
    return low


def _kinds(
    options: Sequence[Option], busy_s: Sequence[Array], devices: int, micro_batches: int
) -> tuple[int, dict[Kind, Array]]:
    """The meshes' common divisor, and for each kind, in units of that, the seconds
    [first, last] of the fastest option."""
    fitting = [
        (option, busy)
        for option, busy in zip(options, busy_s, strict=True)
        if option.devices <= devices
    ]
    ends = [end for option, _ in fitting for end in option.span or ()]
    unit = gcd(devices, *ends, *(option.devices for option, _ in fitting))
    found: dict[Kind, Array] = {}
    for option, busy in fitting:
        first, last = option.span or (0, devices)
        kind = (option.devices // unit, first // unit, last // unit)
        fits = least_bytes(option, micro_batches) <= option.capacity_bytes
        taken_s = np.where(fits, option.sums(busy), inf)
        known = found.get(kind)
        found[kind] = taken_s if known is None else np.minimum(known, taken_s)
    return unit, found


def least_bytes(option: Option, micro_batches: int) -> Array:
    """[first, last] → bytes of a stage wherever it is in a pipeline, but for what it
    works with and what is always there."""
    found = stages_sums(option.state_bytes + min(2, micro_batches) * option.saved_bytes)
    found[:, -1] = stages_sums(option.state_bytes + option.saved_bytes)[:, -1]
    return found


def _reaches(
    kinds: dict[Kind, Array], devices: int, micro_batches: int, most_s: float
) -> bool:
    """Whether some partition has Σ_{i<s} t_i + m · t_s ≤ *most_s* for all stages."""
    layers = len(next(iter(kinds.values())))
    least = np.full((layers + 1, devices + 1), inf)
    least[0, 0] = 0.0
    for first in range(layers):
        before = least[first]
        for (size, start, end), taken in kinds.items():
            if end - start < size:
                continue
            prefix_s = before[None, start : end - size + 1]
            stage_s = taken[first, first:, None]
            fits = prefix_s + micro_batches * stage_s <= most_s
            reached = np.where(fits, prefix_s + stage_s, inf)
            there = least[first + 1 :, start + size : end + 1]
            np.minimum(there, reached, out=there)
    return bool(np.isfinite(least[layers, devices]))
