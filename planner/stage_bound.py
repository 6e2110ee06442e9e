"""What no pipeline of unlike stages goes below: whole layers, whole meshes, the fill,
and what a stage holds at the least.

Stage s runs m micro-batches forward and backward; before its first, a micro-batch goes
forward through the stages before it, and after its last, one backward:

    T ≥ Σ_{i<s} t_i + m · t_s + update_s           for every stage s
    T ≥ Σ_{i<s} f_i + m · t_s + late_s + update_s  (late_0 in every Σ t_i too)

with what `stage_passes` says of a gradient reduction that is late, and of updates.

Of all cuts of the layers into stages on the meshes of a menu, the least that this can
be: G(k, d), the least Σ t (and the least Σ f) over stages that hold the first k layers
on the first d devices and none of which breaks T, grows from layer to layer, and T is
possible if the last layer is reached on the last device. T is then found by halving. A
stage has two micro-batches in flight, the last one has one: of their memory no more is
asked (`trip_bound` asks for as many as stages follow).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import inf
from typing import Any

import numpy as np
from numpy.typing import NDArray

from planner.stage_layers import Option, unit_of
from planner.stage_passes import Passes, Stages, gathered

Array = NDArray[Any]
CLOSE = 2e-3  # of the bound: halving stops there
Late = Callable[[], bool]  # whether time is over
Kind = tuple[int, int, int]  # devices, and between which a stage of so many may lie


def never() -> bool:
    return False


def cut_bound_s(
    options: Sequence[Option],
    passes: Sequence[Passes],
    *,
    devices: int,
    micro_batches: int,
    at_least_s: float = 0.0,
    at_most_s: float,
    late: Late = never,
) -> float:
    """Seconds that no partition takes less than, with the *passes* of each option;
    *at_least_s* is known to be one such bound, and more than *at_most_s* is of no use.
    Once it is *late* a looser one will do.
    """
    unit, kinds = _kinds(options, passes, devices, micro_batches)

    def possible(most_s: float) -> bool:
        return _reaches(kinds, devices // unit, micro_batches, most_s)

    if not kinds:
        return at_most_s
    return halved(possible, at_least_s, at_most_s, late)


def halved(
    possible: Callable[[float], bool], low: float, high: float, late: Late = never
) -> float:
    """The largest number up to *high* known to be impossible, within `CLOSE`: *low* is
    one, and what is more than a possible one is possible. What is known once it is
    *late* has to do."""
    if late():
        return low
    if not possible(high):
        return high
    while high - low > CLOSE * high and not late():
        middle = (low + high) / 2
        if possible(middle):
            high = middle
        else:
            low = middle
    return low


def _kinds(
    options: Sequence[Option],
    passes: Sequence[Passes],
    devices: int,
    micro_batches: int,
) -> tuple[int, dict[Kind, tuple[Stages, ...]]]:
    """The meshes' common divisor, and for each kind, in units of that, what its stages
    take at the least."""
    fitting = [
        (option, each)
        for option, each in zip(options, passes, strict=True)
        if option.devices <= devices
    ]
    unit = unit_of(options, devices)

    if not fitting:
        return unit, {}
    found, ways = zip(*fitting, strict=True)
    fits = np.array(
        [
            least_bytes(option, micro_batches) <= option.capacity_bytes
            for option in found
        ]
    )
    kinds = [_kind(option, devices, unit) for option in found]
    return unit, gathered(kinds, ways, Stages.of(found, ways), fits)


def _kind(option: Option, devices: int, unit: int) -> Kind:
    first, last = option.span or (0, devices)
    return option.devices // unit, first // unit, last // unit


def least_bytes(option: Option, micro_batches: int) -> Array:
    """[first, last] → bytes of a stage wherever it is in a pipeline."""
    found = option.stages_bytes(min(2, micro_batches))
    found[:, -1] = option.stages_bytes(1)[:, -1]
    return found


def _reaches(
    kinds: Mapping[Kind, Sequence[Stages]],
    devices: int,
    micro_batches: int,
    most_s: float,
) -> bool:
    """Whether some partition takes no more than *most_s* at any of its stages."""
    several = [one for ways in kinds.values() for one in ways]
    layers = len(several[0].both_s)
    late = any(one.is_late for one in several)
    least = np.full((layers + 1, devices + 1), inf)
    least[0, 0] = 0.0
    forward = least.copy()
    for first in range(layers):
        for (size, start, end), ways in kinds.items():
            if end - start < size:
                continue
            before, after = slice(start, end - size + 1), slice(start + size, end + 1)
            prefix_s = least[first][None, before]
            early_s = forward[first][None, before]
            for one in ways:
                stage_s = one.both_s[first, first:, None]
                late_s = one.late_s[first, first:, None]
                left_s = most_s - one.update_s[first, first:, None]
                left_s = left_s - micro_batches * stage_s
                fits = prefix_s <= left_s
                if late:
                    fits &= early_s + late_s <= left_s
                    onward_s = early_s + one.forward_s[first, first:, None]
                    _lower(forward[first + 1 :, after], fits, onward_s)
                counted_s = stage_s + late_s if first == 0 else stage_s
                _lower(least[first + 1 :, after], fits, prefix_s + counted_s)
    return bool(np.isfinite(least[layers, devices]))


def _lower(known: Array, fits: Array, found: Array) -> None:
    """Put what is *found* into what is *known*, where it is less and *fits*."""
    np.minimum(known, np.where(fits, found, inf), out=known)
