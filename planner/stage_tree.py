"""Every pipeline of unlike stages that may be fast enough, grown from its last stage.

A suffix is so many stages that hold the layers from k on, on the last d devices. All of
a suffix is known, so that it can be run (`stage_runs`); a step with it takes no less
than

    the least sum (t + x) over stages before it that are fast enough + its run

(nothing of it starts before the first micro-batch is there, and the stages before it
have a backward each when its last one has ended). What takes longer than the limit is
dropped, and so, where there are more than *width* suffixes of one number of stages, are
those that take longest: then the least that is known of them is the bound. Else the
best pipelines are found, and none is better.

Before a suffix is run, the paths that its first stage adds (`stage_paths` has them of a
whole pipeline) tell most that take too long:

    along     m · t
    windows   to each stage behind: what fills it, then a trip for so many micro-batches
    filling   a trip to the end, and all that the stage does after the first is back

and where it begins an island, the window from whatever stage may be before it. The
longest update of its stages comes on top.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, fields, replace
from math import inf
from typing import Final, NamedTuple

import numpy as np

from planner.stage_kinds import Kind
from planner.stage_packing import is_regular, ways
from planner.stage_partition import Array
from planner.stage_prefixes import Prefix, prefixes
from planner.stage_runs import AT_ONCE, ends_s
from planner.stages_held import StagesHeld

STARTS = 0  # the way to have packed nothing
GROWN: Final = 1_024  # suffixes that get a stage more at a time


class Whole(NamedTuple):
    """A pipeline: the first layer and the kind of each stage, and its seconds."""

    firsts: tuple[int, ...]
    kinds: tuple[Kind, ...]
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Grown:
    """The best pipelines that were found, and what none takes less than."""

    best: tuple[Whole, ...]
    lower_s: float


_OF_ALL: Final = ("devices", "packed", "before_s", "path_s", "update_s", "known_s")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Suffixes:
    """By suffix: the devices it is on, how they are packed, what the least before it
    takes, its longest path and its longest update, and what is known of a step with
    it; by stage, the first one first: its
    first layer, its kind's number, seconds of forward and backward, how late its
    reduction is, the way to the next and back."""

    devices: Array
    packed: Array
    before_s: Array
    path_s: Array
    update_s: Array
    known_s: Array
    firsts: Array
    kinds: Array
    forward_s: Array
    backward_s: Array
    late_s: Array
    ways_s: Array

    @classmethod
    def of_none(cls) -> _Suffixes:
        """The one that has no stages."""
        return cls(
            **{
                one.name: np.zeros(
                    (1,) if one.name in _OF_ALL else (1, 0),
                    dtype=float if one.name.endswith("_s") else int,
                )
                for one in fields(cls)
            }
        )

    def __len__(self) -> int:
        return len(self.devices)

    @property
    def stages(self) -> int:
        return int(self.firsts.shape[1])

    def taken(self, rows: Array) -> _Suffixes:
        """Those of *rows*."""
        return _Suffixes(
            **{one.name: getattr(self, one.name)[rows] for one in fields(self)}
        )


@dataclass(kw_only=True)
class _Kept:
    """The *width* suffixes of which the least is known; none that was put aside takes
    less than `cut_s`."""

    width: int
    cut_s: float = inf
    _several: list[_Suffixes] = field(default_factory=list)
    _count: int = 0

    def add(self, suffixes: _Suffixes) -> None:
        self._several.append(suffixes)
        self._count += len(suffixes)
        if self._count > 2 * self.width:
            self._several = [self.least()]
            self._count = len(self._several[0])

    def least(self) -> _Suffixes:
        """Those that take least first."""
        if not self._several:
            return _Suffixes.of_none().taken(np.arange(0))
        found = _joined(self._several)
        order = np.argsort(found.known_s, kind="stable")
        if len(order) > self.width:
            self.cut_s = float(found.known_s[order[self.width]])
        return found.taken(order[: self.width])


@dataclass(frozen=True, kw_only=True, eq=False)
class Tree:
    """Pipelines of a menu, of `held` stages."""

    held: StagesHeld

    @property
    def layers(self) -> int:
        return self.held.layers

    @property
    def units(self) -> int:
        return self.held.units

    @property
    def micro_batches(self) -> int:
        return self.held.micro_batches

    def grown(
        self,
        below_s: float,
        *,
        width: int,
        stages: int | None = None,
        best: int = 1,
        between: Callable[[], None] = lambda: None,
    ) -> Grown:
        """The *best* pipelines that take less than *below_s*, of so many *stages* if
        they are given; with at most *width* suffixes of each number of stages.
        *between* is called again and again, and may raise."""
        kinds = [kind for kind in self.held[0] if kind.possible]
        before = prefixes(self.held, below_s, between)
        packings = [_packing(kind, kinds, self.held) for kind in kinds]
        suffixes, found = _Suffixes.of_none(), list[Whole]()
        lower_s = below_s
        for count in range(1, min(self.layers, self.units, stages or self.units) + 1):
            kept = _Kept(width=width)
            for some in self._longer(suffixes, kinds, packings, before, below_s, kept):
                between()
                ran = self._run(some)
                done = np.flatnonzero((ran.firsts[:, 0] == 0) & (ran.known_s < below_s))
                if len(done) and stages in (None, count):
                    lower_s = min(lower_s, float(ran.known_s[done].min()))
                    found += _spelled(ran, done, kinds, best)
                opened = (ran.firsts[:, 0] > 0) & (ran.known_s < below_s)
                kept.add(ran.taken(np.flatnonzero(opened)))
            suffixes = kept.least()
            lower_s = min(lower_s, kept.cut_s)
            if not len(suffixes):
                break
        found.sort(key=lambda one: one.seconds)
        return Grown(best=tuple(found[:best]), lower_s=lower_s)

    def _longer(
        self,
        behind: _Suffixes,
        kinds: Sequence[Kind],
        packings: Sequence[_Packing],
        before: Sequence[Prefix],
        below_s: float,
        kept: _Kept,
    ) -> Iterator[_Suffixes]:
        """All of *behind*, which take longer and longer, with a stage more, some at a
        time, but for what takes too long for what is *kept*."""
        several, waiting = list[_Suffixes](), 0
        for first in range(0, len(behind), GROWN):
            limit_s = min(below_s, kept.cut_s)
            if behind.known_s[first] >= limit_s:
                break
            some = behind.taken(np.arange(first, min(first + GROWN, len(behind))))
            for number in range(len(kinds)):
                for one in self._one_more(
                    some, number, kinds, packings, before[behind.stages + 1], limit_s
                ):
                    several.append(one)
                    waiting += len(one)
            if waiting >= AT_ONCE:
                yield _joined(several)
                several, waiting = [], 0
        if waiting:
            yield _joined(several)

    def _run(self, suffixes: _Suffixes) -> _Suffixes:
        """*suffixes* with what is known of them once they are run."""
        ends = ends_s(
            suffixes.forward_s,
            suffixes.backward_s,
            suffixes.ways_s,
            self.micro_batches,
        )
        whole = suffixes.firsts[:, 0] == 0
        known_s = suffixes.before_s + np.maximum(ends[:, 0], suffixes.path_s)
        known_s[whole] = (ends + suffixes.late_s)[whole].max(axis=1)
        return replace(suffixes, known_s=known_s + suffixes.update_s)

    def _one_more(
        self,
        behind: _Suffixes,
        number: int,
        kinds: Sequence[Kind],
        packings: Sequence[_Packing],
        before: Prefix,
        below_s: float,
    ) -> Iterator[_Suffixes]:
        """*behind* with a stage of that kind before, but for what takes too long."""
        kind, packing, count = kinds[number], packings[number], behind.stages + 1
        devices = behind.devices + kind.size
        rows = np.flatnonzero((devices >= kind.fewest) & (devices <= kind.most))
        if not len(rows):
            return
        behind, devices = behind.taken(rows), devices[rows]
        first = devices == kind.fewest  # of its island, from the end
        way = np.where(first, STARTS, behind.packed)
        way_s, last = np.zeros(len(rows)), np.full(len(rows), self.layers - 1)
        if count > 1:
            last = behind.firsts[:, 0] - 1
            after = behind.kinds[:, 0]
            near_s, away_s, crossed_s = (
                np.maximum(here, np.array(there)[after])
                for here, there in (
                    (kind.ways.sent_s, [one.ways.sent_s for one in kinds]),
                    (kind.ways.away_s, [one.ways.away_s for one in kinds]),
                    (kind.ways.crossed_s, [one.ways.arrived_s for one in kinds]),
                )
            )
            inside_s = np.where(packing.far[way], away_s, near_s)
            way_s = np.where(first, crossed_s, inside_s)
        least_s = before.sums_s[:-1, self.units - devices].T
        for one in self.held[count - 1][kind]:
            taken_s = self.micro_batches * one.both_s[:, last].T
            taken_s += one.update_s[:, last].T
            row, start = np.nonzero(least_s + taken_s < below_s)
            if not len(row):
                continue
            forward_s = one.forward_s[start, last[row]]
            backward_s = one.backward_s[start, last[row]]
            rest = behind.taken(row)
            grown = _Suffixes(
                devices=devices[row],
                packed=packing.after[way[row]],
                before_s=least_s[row, start],
                path_s=rest.path_s,
                known_s=rest.known_s,
                update_s=np.maximum(one.update_s[start, last[row]], rest.update_s),
                firsts=_put(start, rest.firsts),
                kinds=_put(np.full(len(row), number), rest.kinds),
                forward_s=_put(forward_s, rest.forward_s),
                backward_s=_put(backward_s, rest.backward_s),
                late_s=_put(one.late_s[start, last[row]], rest.late_s),
                ways_s=_put(way_s[row], rest.ways_s) if count > 1 else rest.ways_s,
            )
            path_s = self._path_s(grown)
            if kind.most < self.units:
                begins = grown.devices == kind.most
                turn_s = before.last_s[start, self.units - grown.devices]
                path_s[begins] = self._turned_s(grown, path_s, turn_s)[begins]
            known_s = grown.before_s + path_s + grown.update_s
            fits = np.flatnonzero(known_s < below_s)
            yield replace(grown, path_s=path_s, known_s=known_s).taken(fits)

    def _path_s(self, suffixes: _Suffixes) -> Array:
        """The longest path, where `path_s` is that behind the first stage."""
        m, stages = self.micro_batches, suffixes.stages
        both_s = suffixes.forward_s + suffixes.backward_s
        slowest_s = window_s = both_s[:, 0]
        longest_s = m * slowest_s
        if stages == 1:
            return np.asarray(longest_s)
        behind_s = slowest_s + suffixes.ways_s[:, 0] + suffixes.path_s
        longest_s = np.maximum(longest_s, behind_s)
        for last in range(1, stages):
            slowest_s = np.maximum(slowest_s, both_s[:, last])
            window_s = window_s + suffixes.ways_s[:, last - 1] + both_s[:, last]
            filling = min(stages - 1 - last, m - 1)
            more, left = divmod(m - 1 - filling, last + 1)
            waited_s = filling * slowest_s + (1 + more) * window_s
            waited_s += left * (slowest_s if more else both_s[:, last])
            longest_s = np.maximum(longest_s, waited_s)
        forwards = m - min(stages, m)
        filled_s = (m - 1) * suffixes.backward_s[:, 0]
        filled_s = window_s + filled_s + forwards * suffixes.forward_s[:, 0]
        return np.asarray(np.maximum(longest_s, filled_s))

    def _turned_s(self, suffixes: _Suffixes, path_s: Array, turn_s: Array) -> Array:
        """*path_s* or what takes turns at the link to the island before, where a stage
        and the way from it take *turn_s* or more: part of that is in what is before."""
        m = self.micro_batches
        first_s = suffixes.forward_s[:, 0] + suffixes.backward_s[:, 0]
        filling = min(suffixes.stages - 1, m - 1)
        more, left = divmod(m - 1 - filling, 2)
        turned_s = more * turn_s + (filling + 1 + more + left) * first_s
        return np.asarray(np.maximum(path_s, turned_s))


class _Packing(NamedTuple):
    """[way to have packed] → the way with a stage of a kind more, and whether it lies
    in another domain than the one behind it."""

    after: Array
    far: Array


def _packing(kind: Kind, kinds: Sequence[Kind], held: StagesHeld) -> _Packing:
    """Of the island where *kind* is at home; no stage is far where none can tell."""
    here = [one for one in kinds if _island(one) == _island(kind)]
    domain = round(min(kind.ways.domain, held.units) * held.unit)
    devices = (kind.most - kind.fewest + kind.size) * held.unit
    if not is_regular(domain, devices):
        return _Packing(np.zeros(1, dtype=int), np.zeros(1, dtype=bool))
    sizes = tuple(sorted({one.size * held.unit for one in here}))
    steps = np.array(ways(domain, sizes), dtype=int)
    size = sizes.index(kind.size * held.unit)
    return _Packing(steps[:, size, 0], steps[:, size, 1].astype(bool))


def _island(kind: Kind) -> tuple[int, int]:
    """Between which numbers of devices to the end it lies."""
    return kind.fewest - kind.size, kind.most


def _put(first: Array, rest: Array) -> Array:
    return np.concatenate([first[:, None], rest], axis=1)


def _joined(several: Sequence[_Suffixes]) -> _Suffixes:
    return _Suffixes(
        **{
            one.name: np.concatenate([getattr(each, one.name) for each in several])
            for one in fields(_Suffixes)
        }
    )


def _spelled(
    suffixes: _Suffixes, done: Array, kinds: Sequence[Kind], best: int
) -> Iterator[Whole]:
    """The *best* of those that are *done*."""
    for row in done[np.argsort(suffixes.known_s[done], kind="stable")][:best]:
        yield Whole(
            firsts=tuple(suffixes.firsts[row].tolist()),
            kinds=tuple(kinds[number] for number in suffixes.kinds[row]),
            seconds=float(suffixes.known_s[row]),
        )
