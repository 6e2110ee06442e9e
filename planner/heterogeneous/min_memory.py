"""Stages of any mesh that need the least memory on the fullest device.

Within a *limit* of bytes, a stage of a kind that begins at layer k may end at any layer
up to E(k), as fewer layers need less. Whether any stages fit is then

    R(s, k, d) = any over kinds, j of k…E(k)  R(s − 1, j + 1, d − devices)

over s stages that hold the layers from k on, on the last d devices: a stage with s from
it to the end holds min(s, m) micro-batches in flight (1F1B). The least limit is found
by halving. It asks for no square of the layers, of which there may be very many. One
stage alone, which needs less than it would among others, is looked at by itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import inf

import numpy as np

from planner.heterogeneous.candidates import EXACT, Kind, Option, Stages
from planner.heterogeneous.partition import Part, Partition, latency_s
from profiles.arrays import Array

CLOSE = 1e-9  # halving stops there: the certificate's limit is what is known not to fit


@dataclass(frozen=True, slots=True, kw_only=True)
class Lean:
    """The partition that needs least, and the bytes of its fullest stage: no partition
    goes below."""

    partition: Partition
    peak_bytes: float


def leanest(
    stages: Stages,
    *,
    below_bytes: float = inf,
    number: int | None = None,
    late: Callable[[], bool] = lambda: False,
) -> Lean | None:
    """Of partitions into that *number* of stages, if it is given, the one that needs
    least; None where none needs less than *below_bytes*. Once it is *late*, the leanest
    so far."""
    best = fitting(stages, below_bytes * (1 - CLOSE), number)
    low = 0.0
    while best and best.peak_bytes - low > CLOSE * best.peak_bytes and not late():
        middle = (low + best.peak_bytes) / 2
        found = fitting(stages, middle, number)
        if found is None:
            low = middle
        else:
            best = found
    return best


def fitting(
    stages: Stages, limit_bytes: float = inf, number: int | None = None
) -> Lean | None:
    """Stages that need no more than they have, and *limit_bytes*: as few of them as may
    be, not those that need least."""
    alone = _alone(stages, limit_bytes) if number in (None, 1) else None
    if alone is not None:
        return _lean(stages, [alone])
    layers, units = stages.layers, stages.units
    reached = [np.zeros((layers + 1, units + 1), dtype=bool)]
    reached[0][layers, 0] = True
    ends: list[dict[Kind, Array]] = []
    for count in range(1, min(stages.most_stages, number or layers) + 1):
        if count <= stages.micro_batches:
            ends.append(_ends(stages, count, limit_bytes))
        reached.append(_one_more(ends[-1], reached[-1]))
        if number in (None, count) and reached[-1][0, units]:
            return _lean(stages, list(_walk(stages, reached, ends)))
        if not reached[-1].any():
            break
    return None


def _alone(stages: Stages, limit_bytes: float) -> Part | None:
    """All layers on all devices, with the option that needs least."""
    last, options = stages.layers - 1, stages.options
    found = [
        (held, number)
        for kind, numbers in stages.kinds.items()
        for number in numbers
        if kind.size == stages.units and options[number].starts and options[number].ends
        for held in [_held(options[number], 0, last, 1)]
        if held <= min(options[number].capacity_bytes, limit_bytes)
    ]
    return Part(first=0, last=last, option=min(found)[1]) if found else None


def _ends(stages: Stages, in_flight: int, limit_bytes: float) -> dict[Kind, Array]:
    """[first layer] → the last one that a stage of each kind may hold, but for one with
    all of them."""
    found = {}
    for kind, numbers in stages.kinds.items():
        every = [_end(stages.options[one], in_flight, limit_bytes) for one in numbers]
        found[kind] = np.max(every, axis=0)
        found[kind][0] = min(found[kind][0], stages.layers - 2)
    return found


def _end(option: Option, in_flight: int, limit_bytes: float) -> Array:
    """[first layer] → the last one of the largest stage that needs no more than there
    is, and *limit_bytes*; before the first where none does."""
    layers = np.arange(len(option.seconds))
    room = min(option.capacity_bytes, limit_bytes) * (1 + EXACT) - option.base_bytes
    each = option.state_bytes + in_flight * option.saved_bytes
    sums = np.cumsum(each)
    found = layers - 1
    for working in np.unique(option.working_bytes).tolist():
        most = np.searchsorted(sums, sums - each + room - working, side="right") - 1
        larger = np.where(option.working_bytes > working, layers, len(layers))
        before = np.minimum.accumulate(larger[::-1])[::-1] - 1  # the next larger one
        np.maximum(found, np.minimum(most, before), out=found)
    if not option.ends:
        found = np.minimum(found, len(layers) - 2)
    if not option.starts:
        found[0] = -1
    return np.maximum(found, layers - 1)


def _one_more(ends: dict[Kind, Array], behind: Array) -> Array:
    """R over one stage more than *behind* is of."""
    found = np.zeros_like(behind)
    several = np.cumsum(behind, axis=0, dtype=np.int32)
    several = np.pad(several, ((1, 0), (0, 0)))
    starts = np.arange(1, len(behind))
    for kind, last in ends.items():
        counts = several[:, kind.behind]
        found[:-1, kind.left] |= counts[last + 2] > counts[starts]
    return found


def _walk(
    stages: Stages, reached: Sequence[Array], ends: Sequence[dict[Kind, Array]]
) -> Iterator[Part]:
    """The stages that *reached* all layers, those in front as small as may be."""
    first, left = 0, stages.units
    for number in range(len(reached) - 1, 0, -1):
        in_flight = min(number, stages.micro_batches)
        behind = reached[number - 1]
        several = [
            (first + int(np.argmax(legal)), place, kind)
            for place, (kind, most) in enumerate(ends[in_flight - 1].items())
            if kind.fewest <= left <= kind.most
            for legal in [behind[first + 1 : most[first] + 2, left - kind.size]]
            if legal.any()
        ]
        last, _, kind = min(several)
        option = min(
            (
                one
                for one in stages.kinds[kind]
                if _end(stages.options[one], in_flight, inf)[first] >= last
            ),
            key=lambda one: _held(stages.options[one], first, last, in_flight),
        )
        yield Part(first=first, last=last, option=option)
        first, left = last + 1, left - kind.size


def _held(option: Option, first: int, last: int, in_flight: int) -> float:
    """Bytes of a stage of those layers."""
    here = slice(first, last + 1)
    alive = option.state_bytes[here] + in_flight * option.saved_bytes[here]
    whole = first == 0 and last == len(option.seconds) - 1
    held = alive.sum() + option.working_bytes[here].max() + option.base_bytes
    return float(held - (option.alone_bytes if whole else 0.0))


def _lean(stages: Stages, parts: Sequence[Part]) -> Lean:
    """*parts* with what the fullest of them needs."""
    m, options = stages.micro_batches, stages.options
    held = [
        _held(options[part.option], part.first, part.last, min(behind, m))
        for behind, part in zip(range(len(parts), 0, -1), parts, strict=True)
    ]
    seconds = latency_s(parts, options, m)
    return Lean(
        partition=Partition(parts=tuple(parts), seconds=seconds), peak_bytes=max(held)
    )
