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

What 1F1B takes of one partition at the least: the longest of the paths through it
that slow links and slow stages make long.

    along     down to stage s, m passes of it, and up: Σ_{i<s} (t_i + x_i) + m · t_s
    windows   down to stage e; w − 1 passes while it fills, of the slowest up to e; then
              from s to e and back for every e − s + 1 micro-batches, since s sends one
              when that many before it are back; what is left at the slowest stage
    filling   down from s to the end and back, and all that s does once the first one is
    late      a stage's gradient reduction, behind its last backward (`stage_passes`)

with w stages from e to the end. (`costmodel.batched.makespan` has the same paths for
runs of equal stages.) The programme knows windows to the last stage alone: this puts
what it finds into a better order, and what is not below the best is not simulated.
Where a pipeline leaves a domain of its island is a guess, so that no certificate rests
on it.

The least that stages before a suffix take, by how many stages that has.

A stage with w stages behind it has min(w + 1, m) micro-batches in flight, which its
memory must hold. From the most stages to the fewest, the least sum (t + x) over stages
that hold the first k layers on the first d devices, none of which takes too long with
what is before it:

    B(w, k, d) = min over j, mesh of  B(w + 1, j, d − devices) + t(j…k) + x

where B(w + 1, j, d − devices) + m · t + update is below the limit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, fields, replace
from itertools import accumulate
from math import inf
from typing import Final, NamedTuple

import numpy as np

from planner.heterogeneous.bound import Held, StagesHeld
from planner.heterogeneous.candidates import Kind, Option
from planner.heterogeneous.packing import is_regular, ways
from planner.heterogeneous.partition import Part, ways_s
from planner.heterogeneous.stage_costs import Passes, without_tied_s
from planner.heterogeneous.stage_runs import AT_ONCE, ends_s
from profiles.arrays import Array


def path_s(
    parts: Sequence[Part],
    options: Sequence[Option],
    passes: Sequence[Passes],
    micro_batches: int,
    tied_s: float = 0.0,
) -> float:
    """Seconds that a step of *parts* takes at least, with the *passes* of each of the
    *options*, but for what is no stage's own: *tied_s* at the two ends, and more."""
    chosen = [(passes[part.option], part) for part in parts]
    there = [_sum(each.forward_s, part) for each, part in chosen]
    back = [_sum(each.backward_s, part) for each, part in chosen]
    reduced = [_sum(each.reduce_s, part) for each, part in chosen]
    if len(parts) == 1:
        reduced[0] -= chosen[0][0].shared_reduce_s
        back[0] -= chosen[0][0].shared_backward_s
    late = [max(r - b, 0.0) for r, b in zip(reduced, back, strict=True)]
    both = [f + b for f, b in zip(there, back, strict=True)]
    ways = ways_s(parts, options)
    before = [0.0, *accumulate(t + x for t, x in zip(both, ways, strict=True))]
    down = [0.0, *accumulate(f + x / 2 for f, x in zip(there, ways, strict=True))]
    longest = 0.0
    for first, taken in enumerate(both):
        longest = max(longest, before[first] + micro_batches * taken)
        reduce_s = down[first] + micro_batches * taken + late[first] - late[0]
        longest = max(longest, reduce_s)
        slowest = taken
        for last in range(first + 1, len(both)):
            slowest = max(slowest, both[last])
            window = before[last] + both[last] - before[first]
            behind = min(len(both) - 1 - last, micro_batches - 1)
            rest = micro_batches - 1 - behind
            times, left = divmod(rest, last - first + 1)
            waited = behind * slowest + (1 + times) * window
            waited += left * (slowest if times else both[last])
            longest = max(longest, before[first] + waited)
        held = min(len(both) - first, micro_batches)
        filled = before[-1] + (micro_batches - 1) * back[first]
        longest = max(longest, filled + (micro_batches - held) * there[first])
    updates = [each.stages_s[3][part.first, part.last] for each, part in chosen]
    updates[1:-1] = without_tied_s(np.array(updates[1:-1]), tied_s)
    return longest + late[0] + float(max(updates))


def _sum(seconds: Array, part: Part) -> float:
    return float(seconds[part.first : part.last + 1].sum())


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Prefix:
    """Before a suffix [layers, devices] the least sum there and back, with the way to
    it if that is to another island; of the last stage alone the same."""

    sums_s: Array
    last_s: Array


def prefixes(
    stages: StagesHeld, below_s: float, between: Callable[[], None] = lambda: None
) -> list[Prefix]:
    """[stages behind] → what is before them, of what takes less than *below_s*;
    *between* is called before each number of them, and may raise."""
    layers, units = stages.layers, stages.units
    nothing = np.full((layers + 1, units + 1), inf)
    nothing[0, 0] = 0.0
    found = [Prefix(sums_s=nothing, last_s=np.zeros_like(nothing))]
    for behind in reversed(range(min(layers, units))):
        between()
        before, m = found[-1].sums_s, stages.micro_batches
        found.append(_one_more(stages[behind], before, m, below_s))
    return found[::-1]


def _one_more(held: Held, before: Array, micro_batches: int, below_s: float) -> Prefix:
    sums_s, last_s = np.full_like(before, inf), np.full_like(before, inf)
    sums_s[0, 0] = last_s[0, 0] = 0.0
    units = before.shape[1] - 1
    for kind, options in held.items():
        if not kind.possible:
            continue
        start, end = units - kind.most, units - kind.fewest
        early_s = before[:-1, None, start : end + 1]
        reached = np.flatnonzero(np.isfinite(early_s).any(axis=(1, 2)))
        early_s = early_s[reached]
        after = slice(start + kind.size, end + kind.size + 1)
        for one in options if len(reached) else ():
            each = one.both_s[reached, :, None]
            taken_s = micro_batches * each + one.update_s[reached, :, None]
            here_s = np.where(early_s + taken_s < below_s, each, inf)
            here_s[:, :, -1] += kind.ways.crossed_s  # the last of its island
            for known, several in ((sums_s, early_s + here_s), (last_s, here_s)):
                there = known[1:, after]
                np.minimum(there, several.min(axis=0), out=there)
    return Prefix(sums_s=sums_s, last_s=last_s)


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
        last = np.full(len(rows), self.layers - 1)
        ways_s = behind.ways_s
        if count > 1:
            last = behind.firsts[:, 0] - 1
            way_s = _way_s(behind, kind, kinds, far=packing.far[way], first=first)
            ways_s = _put(way_s, ways_s)
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
                ways_s=ways_s[row],
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


def _way_s(
    behind: _Suffixes, kind: Kind, kinds: Sequence[Kind], *, far: Array, first: Array
) -> Array:
    """Seconds from a stage of *kind* to each of *behind* and back: where it is the
    *first* of its island from the end, else in its island, *far* or near."""
    after = behind.kinds[:, 0]
    near_s, away_s, crossed_s = (
        np.maximum(here, np.array(there)[after])
        for here, there in (
            (kind.ways.sent_s, [one.ways.sent_s for one in kinds]),
            (kind.ways.away_s, [one.ways.away_s for one in kinds]),
            (kind.ways.crossed_s, [one.ways.arrived_s for one in kinds]),
        )
    )
    return np.asarray(np.where(first, crossed_s, np.where(far, away_s, near_s)))


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
