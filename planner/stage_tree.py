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
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from math import inf
from typing import Any, NamedTuple

import numpy as np

from planner.stage_kinds import Kind
from planner.stage_packing import is_regular, ways
from planner.stage_partition import Array
from planner.stage_passes import Stages
from planner.stage_runs import ends_s

Tables = Sequence[Mapping[Kind, Sequence[Stages]]]  # [micro-batches in flight − 1]
STARTS = 0  # the way to have packed nothing


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


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Suffixes:
    """By suffix: the devices it is on, how they are packed, what the least before it
    takes; by stage, the first one first: its first layer, its kind's number, seconds of
    forward and backward, how late its reduction is, the way to the next and back."""

    devices: Array
    packed: Array
    before_s: Array
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
                    (1,) if one.name in ("devices", "packed", "before_s") else (1, 0),
                    dtype=float if one.name.endswith("_s") else int,
                )
                for one in fields(cls)
            }
        )

    def __len__(self) -> int:
        return len(self.devices)

    def taken(self, rows: Array) -> _Suffixes:
        """Those of *rows*."""
        return _Suffixes(
            **{one.name: getattr(self, one.name)[rows] for one in fields(self)}
        )


@dataclass(frozen=True, kw_only=True, eq=False)
class Tree:
    """Pipelines of a menu: `tables` say what stages take at the least, by kind and by
    how many micro-batches they have in flight. Devices in units of so many."""

    tables: Tables
    layers: int
    units: int
    unit: int
    micro_batches: int

    def grown(
        self, below_s: float, *, width: int, stages: int | None = None, best: int = 1
    ) -> Grown:
        """The *best* pipelines that take less than *below_s*, of so many *stages* if
        they are given; with at most *width* suffixes of each number of stages."""
        kinds = [kind for kind in self.tables[0] if kind.possible]
        before = _before_s(self, kinds, below_s)
        packings = [_packing(kind, kinds, self) for kind in kinds]
        suffixes, found = _Suffixes.of_none(), list[Whole]()
        lower_s = below_s
        for count in range(1, min(self.layers, self.units, stages or self.units) + 1):
            several = [
                one
                for number in range(len(kinds))
                for one in self._one_more(
                    suffixes, count, number, kinds, packings, before, below_s
                )
            ]
            if not several:
                break
            suffixes = _joined(several)
            suffixes = suffixes.taken(self._trips_s(suffixes) < below_s)
            ends = ends_s(
                suffixes.forward_s,
                suffixes.backward_s,
                suffixes.ways_s,
                self.micro_batches,
            )
            whole = suffixes.firsts[:, 0] == 0
            taken_s = suffixes.before_s + ends[:, 0]
            taken_s[whole] = (ends + suffixes.late_s)[whole].max(axis=1)
            if stages in (None, count):
                done = np.flatnonzero(whole & (taken_s < below_s))
                lower_s = min(lower_s, float(np.min(taken_s[done], initial=inf)))
                found += _spelled(suffixes, taken_s, done, kinds, best)
            open_rows = np.flatnonzero(~whole & (taken_s < below_s))
            if len(open_rows) > width:
                order = open_rows[np.argsort(taken_s[open_rows], kind="stable")]
                lower_s = min(lower_s, float(taken_s[order[width]]))
                open_rows = order[:width]
            suffixes = suffixes.taken(open_rows)
        found.sort(key=lambda one: one.seconds)
        return Grown(best=tuple(found[:best]), lower_s=lower_s)

    def _trips_s(self, suffixes: _Suffixes) -> Array:
        """What trips to the end and back take, and the slowest stage between."""
        both_s = suffixes.forward_s + suffixes.backward_s
        trips, passed = divmod(self.micro_batches - 1, both_s.shape[1])
        trip_s = both_s.sum(axis=1) + suffixes.ways_s.sum(axis=1)
        left_s = passed * both_s.max(axis=1) if trips else 0.0
        return np.asarray(suffixes.before_s + (1 + trips) * trip_s + left_s)

    def _one_more(
        self,
        behind: _Suffixes,
        count: int,
        number: int,
        kinds: Sequence[Kind],
        packings: Sequence[_Packing],
        before: Array,
        below_s: float,
    ) -> Iterator[_Suffixes]:
        """*behind* with a stage before of that kind, *count* stages in all."""
        kind, packing = kinds[number], packings[number]
        devices = behind.devices + kind.size
        rows = np.flatnonzero((devices >= kind.fewest) & (devices <= kind.most))
        if not len(rows):
            return
        first = devices[rows] == kind.fewest  # of its island, from the end
        way = np.where(first, STARTS, behind.packed[rows])
        packed = packing.after[way]
        ways_s = np.zeros((len(rows), 0))
        last = np.full(len(rows), self.layers - 1)
        if count > 1:
            last = behind.firsts[rows, 0] - 1
            after = behind.kinds[rows, 0]
            near_s, away_s, crossed_s = (
                np.maximum(here, np.array(there)[after])
                for here, there in (
                    (kind.ways.sent_s, [one.ways.sent_s for one in kinds]),
                    (kind.ways.away_s, [one.ways.away_s for one in kinds]),
                    (kind.ways.crossed_s, [one.ways.arrived_s for one in kinds]),
                )
            )
            inside_s = np.where(packing.far[way], away_s, near_s)
            ways_s = np.where(first, crossed_s, inside_s)[:, None]
        least_s = before[:-1, self.units - devices[rows]].T
        held = self.tables[min(count, len(self.tables)) - 1]
        for one in held[kind]:
            both_s = one.both_s[:, last].T
            fits = least_s + self.micro_batches * both_s < below_s
            row, start = np.nonzero(fits)
            if not len(row):
                continue
            forward_s = one.forward_s[start, last[row]]
            backward_s = one.backward_s[start, last[row]]
            late_s = one.late_s[start, last[row]]
            rest = behind.taken(rows[row])
            yield _Suffixes(
                devices=devices[rows[row]],
                packed=packed[row],
                before_s=least_s[row, start],
                firsts=_put(start, rest.firsts),
                kinds=_put(np.full(len(row), number), rest.kinds),
                forward_s=_put(forward_s, rest.forward_s),
                backward_s=_put(backward_s, rest.backward_s),
                late_s=_put(late_s, rest.late_s),
                ways_s=np.concatenate([ways_s[row], rest.ways_s], axis=1),
            )


class _Packing(NamedTuple):
    """[way to have packed] → the way with a stage of a kind more, and whether it lies
    in another domain than the one behind it."""

    after: Array
    far: Array


def _packing(kind: Kind, kinds: Sequence[Kind], tree: Tree) -> _Packing:
    """Of the island where *kind* is at home; no stage is far where none can tell."""
    here = [one for one in kinds if _island(one) == _island(kind)]
    domain = round(min(kind.ways.domain, tree.units) * tree.unit)
    devices = (kind.most - kind.fewest + kind.size) * tree.unit
    if not is_regular(domain, devices):
        return _Packing(np.zeros(1, dtype=int), np.zeros(1, dtype=bool))
    sizes = tuple(sorted({one.size * tree.unit for one in here}))
    steps = np.array(ways(domain, sizes), dtype=int)
    size = sizes.index(kind.size * tree.unit)
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
    suffixes: _Suffixes,
    taken_s: Array,
    done: Array,
    kinds: Sequence[Kind],
    best: int,
) -> Iterator[Whole]:
    """The *best* of those that are *done*."""
    for row in done[np.argsort(taken_s[done], kind="stable")][:best]:
        yield Whole(
            firsts=tuple(suffixes.firsts[row].tolist()),
            kinds=tuple(kinds[number] for number in suffixes.kinds[row]),
            seconds=float(taken_s[row]),
        )


def _before_s(tree: Tree, kinds: Sequence[Kind], below_s: float) -> Any:
    """[layers, devices] → the least sums over stages that hold the first layers on the
    first devices, none of which takes *below_s* with what is before it."""
    found = np.full((tree.layers + 1, tree.units + 1), inf)
    found[0, 0] = 0.0
    for first in range(tree.layers):
        for kind in kinds:
            start, end = tree.units - kind.most, tree.units - kind.fewest + kind.size
            before_s = found[first, start : end - kind.size + 1][None]
            for one in tree.tables[0][kind]:
                both_s = one.both_s[first, first:, None]
                fits = before_s + tree.micro_batches * both_s < below_s
                sums = np.where(fits, before_s + both_s, inf)
                sums[:-1, -1] += kind.ways.crossed_s
                there = found[first + 1 :, start + kind.size : end + 1]
                np.minimum(there, sums, out=there)
    return found
