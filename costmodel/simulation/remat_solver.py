"""The cheapest retention that fits: which option each layer of a pipeline rank takes.

    minimise    Σ seconds of what is made again
    subject to  Σ kept bytes × micro-batches in flight + largest working set  ≤  room

Layers of a group are alike, so that a choice is how many take which option. One group
alone takes two options at most, and all pairs and counts are looked at: so no preset,
in all layers or in the first K, is faster in the same room. Its layers may be joined,
too: made again together, from one kept input (rotor's chain, in a layout's words). Of
several groups none are. Several groups (kinds of
layers, chunks of an interleaved rank) go by the best ratio: layer by layer the step of
a convex hull that frees the most bytes a second, under each cap on the working set;
what that leaves is at most one layer's step.

The lower convex hull of points: of many ways, those that are best at some price of
a byte in seconds.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, TypeVar

import numpy as np

from costmodel.simulation.remat_options import Option
from profiles.arrays import Array


def lower_hull(seconds: Array, kept: Array) -> list[int]:
    """The corners, the fastest first; each holds less than the one before.

    >>> lower_hull(np.array([0, 1, 1, 3, 4]), np.array([9, 8, 4, 3, 0]))
    [0, 2, 4]
    """
    corners: list[int] = []
    least = np.inf
    for at in np.lexsort((kept, seconds)).tolist():
        if kept[at] >= least:
            continue
        least = kept[at]
        while len(corners) > 1 and _above(corners[-2], corners[-1], at, seconds, kept):
            corners.pop()
        corners.append(at)
    return corners


def _above(a: int, b: int, c: int, seconds: Array, kept: Array) -> bool:
    """Whether *b* is on or above the line from *a* to *c*."""
    first = (seconds[b] - seconds[a]) * (kept[a] - kept[c])
    second = (seconds[c] - seconds[a]) * (kept[a] - kept[b])
    return bool(first >= second)


MOST_MIXES: Final = 2**22  # rows; 30 options of 4,000 layers have as many
Chosen = tuple[Option, ...]  # one a layer, those that keep the least first
Way = TypeVar("Way")


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """`count` layers alike, with `weight` micro-batches in flight at the peak."""

    count: int
    weight: float
    options: tuple[Option, ...]  # as `menu` gives them


def fit(
    groups: Sequence[Group], room_bytes: float, floor_bytes: float = 0.0
) -> list[Chosen]:
    """The options of every group's layers; the leanest ones where nothing fits.

    *floor_bytes* are the working set of what else the rank has (its head, say).

    >>> from costmodel.layout.retention import KEEP_ALL, recompute
    >>> keep = Option(retention=KEEP_ALL, recompute_s=0, saved_bytes=9, working_bytes=1)
    >>> full = Option(
    ...     retention=recompute("*"), recompute_s=3, saved_bytes=1, working_bytes=9)
    >>> [chosen] = fit([Group(count=4, weight=2, options=(keep, full))], 60)
    >>> [one.recompute_s for one in chosen]
    [3, 3, 0, 0]
    """
    if len(groups) == 1:
        return [_alone(groups[0], room_bytes, floor_bytes)]
    stack = _Stack.of(groups)
    tried = (
        _together(stack, hulls, room_bytes, cap, floor_bytes)
        for hulls, cap in _capped(stack.menus)
    )
    best = cheapest(
        list(tried),
        room_bytes,
        seconds=lambda one: one.seconds,
        needed=lambda one: one.needed_bytes,
    )
    return best.chosen()


def cheapest(
    ways: Sequence[Way],
    room_bytes: float,
    *,
    seconds: Callable[[Way], float],
    needed: Callable[[Way], float],
) -> Way:
    """The fastest of *ways* that fit; the leanest where none does."""
    fitting = [one for one in ways if needed(one) <= room_bytes]
    return min(fitting, key=seconds) if fitting else min(ways, key=needed)


def needed_bytes(groups: Sequence[Group], chosen: Sequence[Chosen]) -> float:
    """What *chosen* keeps at the peak, with the largest working set."""
    runs = [Counter(options).items() for options in chosen]
    held = sum(
        group.weight * sum(one.held_bytes(layers) for one, layers in own)
        for group, own in zip(groups, runs, strict=True)
    )
    return held + max(one.needs_bytes(layers) for own in runs for one, layers in own)


@dataclass(frozen=True, slots=True, kw_only=True)
class Mixes:
    """All pairs of options with all counts, a row each: `count` layers take option
    `lean`, the others `rich`; seconds, bytes kept, the working set, and the most that
    one layer keeps."""

    lean: Array
    rich: Array
    count: Array
    seconds: Array
    held_bytes: Array
    working_bytes: Array
    widest_bytes: Array

    def chosen(self, row: int, group: Group) -> Chosen:
        """The options of *group*'s layers in a row."""
        taken = int(self.count[row])
        first = group.options[self.lean[row]]
        rest = group.options[self.rich[row]]
        return (first,) * taken + (rest,) * (group.count - taken)


def _alone(group: Group, room_bytes: float, floor_bytes: float) -> Chosen:
    ways = mixes(group.count, group.options)
    working = np.maximum(ways.working_bytes, floor_bytes)
    needed = group.weight * ways.held_bytes + working
    fits = needed <= room_bytes
    row = int(np.lexsort((needed, np.where(fits, ways.seconds, np.inf)))[0])
    if not fits.any():
        row = int(np.argmin(needed))
    return ways.chosen(row, group)


@lru_cache(maxsize=256)
def mixes(layers: int, options: tuple[Option, ...]) -> Mixes:
    """What so many layers alike may do with two of *options* at most.

    Of thousands of layers the counts are thinned out evenly, down to `MOST_MIXES` rows:
    one layer more or less is little there.
    """
    each, counts = np.arange(len(options)), _counts(layers, len(options))
    lean, rich, count = (
        axis.ravel() for axis in np.meshgrid(each, each, counts, indexing="ij")
    )
    wanted = (lean > rich) | ((lean == rich) & (count == layers))
    lean, rich, count = lean[wanted], rich[wanted], count[wanted]
    numbers = np.union1d(counts, layers - counts)  # of layers that do the same
    seconds, held, working = (
        np.array([[of(one, int(taken)) for taken in numbers] for one in options])
        for of in (Option.seconds, Option.held_bytes, Option.needs_bytes)
    )
    saved = np.array([one.saved_bytes for one in options])
    others = layers - count
    here, there = (np.searchsorted(numbers, some) for some in (count, others))
    return Mixes(
        lean=lean,
        rich=rich,
        count=count,
        seconds=seconds[lean, here] + seconds[rich, there],
        held_bytes=held[lean, here] + held[rich, there],
        working_bytes=np.maximum(working[lean, here], working[rich, there]),
        widest_bytes=np.maximum(saved[lean], np.where(others > 0, saved[rich], 0.0)),
    )


def _counts(layers: int, options: int) -> Array:
    """How many layers may take the leaner of two options: 1 … *layers*, or of those as
    many as `MOST_MIXES` leaves, with both ends."""
    most = max(MOST_MIXES // options**2, 2)
    return np.unique(np.linspace(1, layers, min(layers, most)).round().astype(int))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Stack:
    """Groups side by side as arrays, and which of a few menus each has."""

    count: Array
    weight: Array
    menus: tuple[tuple[Option, ...], ...]
    menu: Array

    @classmethod
    def of(cls, groups: Sequence[Group]) -> _Stack:
        menus = {id(group.options): group.options for group in groups}
        place = {key: number for number, key in enumerate(menus)}
        return cls(
            count=np.array([group.count for group in groups]),
            weight=np.array([group.weight for group in groups], dtype=float),
            menus=tuple(menus.values()),
            menu=np.array([place[id(group.options)] for group in groups]),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Mix:
    """All layers of a group take one `level` of its hull, but `moved` ones of the
    group `last` that take the next."""

    stack: _Stack
    hulls: Hulls
    level: Array
    last: int
    moved: int
    seconds: float
    needed_bytes: float

    def chosen(self) -> list[Chosen]:
        found: list[Chosen] = []
        rows = zip(self.stack.menu, self.stack.count, self.level, strict=True)
        for place, (menu, count, level) in enumerate(rows):
            hull = self.hulls[menu]
            moved = self.moved if place == self.last else 0
            more = (hull[level + 1],) * moved if moved else ()
            found.append(more + (hull[level],) * (int(count) - moved))
        return found


Hulls = tuple[tuple[Option, ...], ...]


@lru_cache(maxsize=256)
def _capped(menus: tuple[tuple[Option, ...], ...]) -> tuple[tuple[Hulls, float], ...]:
    """The hulls of *menus* with no working set above a cap, each with the least cap
    that has it; none where some layer's smallest one is above."""
    found: dict[Hulls, float] = {}
    for cap in sorted({one.working_bytes for menu in menus for one in menu}):
        hulls = tuple(_hull(menu, _own_cap(menu, cap)) for menu in menus)
        if all(hulls):
            found.setdefault(hulls, cap)
    return tuple(found.items())


def _together(
    stack: _Stack, hulls: Hulls, room_bytes: float, cap: float, floor_bytes: float
) -> _Mix:
    """By the best ratio along *hulls*, which have no working set above *cap*."""
    seconds, held, working = _padded(hulls)
    menu, count, weight = stack.menu, stack.count, stack.weight
    deepest = np.array([len(hull) - 1 for hull in hulls])[menu]
    place = np.repeat(np.arange(len(menu)), deepest)
    step = np.arange(len(place)) - np.repeat(np.cumsum(deepest) - deepest, deepest)
    kind = menu[place]
    bytes_each = held[kind, step] - held[kind, step + 1]
    ratio = (seconds[kind, step + 1] - seconds[kind, step]) / bytes_each
    order = np.lexsort((step, place, ratio / np.maximum(weight[place], 1e-9)))
    place, freed = place[order], (weight[place] * bytes_each)[order]
    over = float((weight * count * held[menu, 0]).sum())
    over += max(cap, floor_bytes) - room_bytes
    sums = np.cumsum(freed * count[place])
    whole = int(np.searchsorted(sums, over)) if over > 0 else 0
    level = np.bincount(place[:whole], minlength=len(menu))
    last, moved = -1, 0
    if over > 0 and whole < len(place):
        last = int(place[whole])
        left = over - (float(sums[whole - 1]) if whole else 0.0)
        moved = min(int(count[last]), int(np.ceil(left / freed[whole])))
    stays = count - moved * (np.arange(len(menu)) == last)
    after = np.minimum(level + 1, deepest)
    needed = weight * (stays * held[menu, level] + (count - stays) * held[menu, after])
    largest = np.maximum(
        np.where(stays > 0, working[menu, level], 0.0),
        np.where(count > stays, working[menu, after], 0.0),
    )
    taken = stays * seconds[menu, level] + (count - stays) * seconds[menu, after]
    return _Mix(
        stack=stack,
        hulls=hulls,
        level=level,
        last=last,
        moved=moved,
        seconds=float(taken.sum()),
        needed_bytes=float(needed.sum() + max(largest.max(), floor_bytes)),
    )


@lru_cache(maxsize=256)
def _padded(hulls: Hulls) -> tuple[Array, Array, Array]:
    """Seconds, bytes kept and working sets, a hull a row."""
    table = np.zeros((3, len(hulls), max(map(len, hulls))))
    for row, hull in enumerate(hulls):
        table[:, row, : len(hull)] = _columns(hull)
    seconds, held, working = table
    return seconds, held, working


@lru_cache(maxsize=1024)
def _hull(options: tuple[Option, ...], cap: float) -> tuple[Option, ...]:
    """Options of single layers on the lower convex hull of seconds over bytes, the
    fastest first, of those whose working set is not above *cap*."""
    single = [one for one in options if one.joined == 1 and one.working_bytes <= cap]
    seconds, held, _ = _columns(single)
    return tuple(single[at] for at in lower_hull(seconds, held))


def _own_cap(options: tuple[Option, ...], cap: float) -> float:
    """The largest working set of *options* that is not above *cap*: hulls are alike
    between two of them."""
    sets = _working_sets(options)
    place = bisect_right(sets, cap)
    return sets[place - 1] if place else 0.0


@lru_cache(maxsize=256)
def _working_sets(options: tuple[Option, ...]) -> tuple[float, ...]:
    return tuple(sorted({one.working_bytes for one in options}))


def _columns(options: Sequence[Option]) -> Array:
    """Seconds, bytes kept and working sets."""
    rows = [(one.recompute_s, one.saved_bytes, one.working_bytes) for one in options]
    return np.array(rows, dtype=float).reshape(-1, 3).T
