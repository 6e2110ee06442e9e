"""The cheapest retention that fits: which option each layer of a pipeline rank takes.

    minimise    Σ seconds of what is made again
    subject to  Σ kept bytes × micro-batches in flight + largest working set  ≤  room

Layers of a group are alike, so that a choice is how many take which option. One group
alone takes two options at most, and all pairs and counts are looked at: so no preset,
in all layers or in the first K, is faster in the same room. Several groups (kinds of
layers, chunks of an interleaved rank) go by the best ratio: layer by layer the step of
a convex hull that frees the most bytes a second, under each cap on the working set;
what that leaves is at most one layer's step.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from costmodel.retention_menu import Option

Array = NDArray[Any]
Chosen = tuple[Option, ...]  # one a layer, those that keep the least first


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """`count` layers alike, with `weight` micro-batches in flight at the peak."""

    count: int
    weight: float
    options: tuple[Option, ...]  # as `menu` gives them


def fit(groups: Sequence[Group], room_bytes: float) -> list[Chosen]:
    """The options of every group's layers; the leanest ones where nothing fits.

    >>> from costmodel.retention import KEEP_ALL, recompute
    >>> keep = Option(retention=KEEP_ALL, recompute_s=0, saved_bytes=9, working_bytes=1)
    >>> full = Option(
    ...     retention=recompute("*"), recompute_s=3, saved_bytes=1, working_bytes=9)
    >>> [chosen] = fit([Group(count=4, weight=2, options=(keep, full))], 60)
    >>> [one.recompute_s for one in chosen]
    [3, 3, 0, 0]
    """
    if len(groups) == 1:
        return [_alone(groups[0], room_bytes)]
    caps = sorted({one.working_bytes for group in groups for one in group.options})
    tried = [_together(groups, room_bytes, cap) for cap in caps]
    found = [one for one in tried if one is not None]
    fitting = [one for one in found if needed_bytes(groups, one) <= room_bytes]
    if fitting:
        return min(fitting, key=_seconds)
    return min(found, key=lambda one: needed_bytes(groups, one))


def needed_bytes(groups: Sequence[Group], chosen: Sequence[Chosen]) -> float:
    """What *chosen* keeps at the peak, with the largest working set."""
    held = sum(
        group.weight * sum(one.saved_bytes for one in options)
        for group, options in zip(groups, chosen, strict=True)
    )
    return held + max(one.working_bytes for options in chosen for one in options)


def _seconds(chosen: Sequence[Chosen]) -> float:
    return sum(one.recompute_s for options in chosen for one in options)


def _alone(group: Group, room_bytes: float) -> Chosen:
    lean, rich, count, seconds, held, working = _mixes(group.count, group.options)
    needed = group.weight * held + working
    fits = needed <= room_bytes
    row = int(np.lexsort((needed, np.where(fits, seconds, np.inf)))[0])
    if not fits.any():
        row = int(np.argmin(needed))
    first, rest = group.options[lean[row]], group.options[rich[row]]
    taken = int(count[row])
    return (first,) * taken + (rest,) * (group.count - taken)


@lru_cache(maxsize=256)
def _mixes(layers: int, options: tuple[Option, ...]) -> tuple[Array, ...]:
    """All pairs of options with all counts: the two, how many layers take the first,
    seconds, bytes kept, and the working set."""
    seconds, held, working = _columns(options)
    each = np.arange(len(options))
    lean, rich, count = (
        axis.ravel()
        for axis in np.meshgrid(each, each, np.arange(1, layers + 1), indexing="ij")
    )
    wanted = (lean > rich) | ((lean == rich) & (count == layers))
    lean, rich, count = lean[wanted], rich[wanted], count[wanted]
    others = layers - count
    both = np.maximum(working[lean], np.where(others > 0, working[rich], 0.0))
    return (
        *(lean, rich, count),
        count * seconds[lean] + others * seconds[rich],
        count * held[lean] + others * held[rich],
        both,
    )


def _together(
    groups: Sequence[Group], room_bytes: float, cap: float
) -> list[Chosen] | None:
    """By the best ratio, with no working set above *cap*; None where some layer's
    smallest one is."""
    hulls = [
        _hull(tuple(one for one in group.options if one.working_bytes <= cap))
        for group in groups
    ]
    if not all(hulls):
        return None
    steps = [
        (_ratio(before, after) / max(group.weight, 1e-9), place, level)
        for place, (group, hull) in enumerate(zip(groups, hulls, strict=True))
        for level, (before, after) in enumerate(pairwise(hull))
    ]
    chosen = [
        [hull[0]] * group.count for group, hull in zip(groups, hulls, strict=True)
    ]
    over = needed_bytes(groups, [(one[0],) * len(one) for one in chosen]) - room_bytes
    over += cap - max(hull[0].working_bytes for hull in hulls)
    for _, place, level in sorted(steps):
        group, (before, after) = groups[place], hulls[place][level : level + 2]
        freed = group.weight * (before.saved_bytes - after.saved_bytes)
        if over <= 0:
            break
        moved = min(group.count, int(np.ceil(over / freed)) if freed else group.count)
        chosen[place][:moved] = [after] * moved
        over -= moved * freed
    return [tuple(one) for one in chosen]


@lru_cache(maxsize=256)
def _hull(options: tuple[Option, ...]) -> tuple[Option, ...]:
    """Options on the lower convex hull of seconds over bytes, the fastest first."""
    hull: list[Option] = []
    for one in options:
        while len(hull) > 1 and _ratio(hull[-2], hull[-1]) >= _ratio(hull[-1], one):
            hull.pop()
        hull.append(one)
    return tuple(hull)


def _ratio(before: Option, after: Option) -> float:
    """Seconds for each byte that *after* keeps less than *before*."""
    freed = before.saved_bytes - after.saved_bytes
    return (after.recompute_s - before.recompute_s) / freed


def _columns(options: tuple[Option, ...]) -> tuple[Array, Array, Array]:
    rows = [(one.recompute_s, one.saved_bytes, one.working_bytes) for one in options]
    seconds, held, working = np.array(rows, dtype=float).T
    return seconds, held, working
