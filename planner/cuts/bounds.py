"""What no cut of the layers into 1F1B stages can beat, many candidates at once.

    work       a stage whose slowest takes s has at most ⌊s / unit⌋ units of layers, and
               the ends have fewer by the embedding and the head       → any_cut_s
    memory     a stage that holds k micro-batches has at most as many units as fit
    together   the least s at which the stages have room for all layers

Leading layers of another kind count for the trip alone.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from math import inf

import numpy as np

from costmodel.batched import Rows, StageRows, any_cut_s
from costmodel.layout import Columns
from costmodel.timeline import shared_bound_s
from planner.cuts.units import Units
from planner.problem import Problem, Table
from planner.search import ENDS, Floor
from profiles.arrays import Array

GLANCES = 3  # stages in the middle that are looked at first
HALVINGS = 16  # of what the slowest stage takes: to a hundredth of a layer of 500
_NOWHERE = -1e9  # units of a stage that cannot be
_FEWER = 1e-9  # of a unit, as sums in another order may differ


@dataclass(frozen=True, kw_only=True)
class CutFloor:
    """The passes of branches, or of candidates, whatever data parallelism adds."""

    pp: Array
    micro_batches: Array
    unit_s: Array  # a micro-batch there and back through a unit of layers
    first_s: Array  # the same of what the first stage has beside them
    last_s: Array
    trip_s: Array  # through all of the model
    forward_share: Array
    turns: float
    units: int

    @classmethod
    def of(cls, problem: Problem, units: Units, branches: Table) -> CutFloor:
        floor = Floor.of(problem, branches)
        graph = problem.job.graph
        body = {name: floor.body(name) for name in graph.kinds}
        start, norm, head = (floor.end(name) for name in ENDS)
        ways = [*body.values(), start, norm, head]
        both = [forward + backward for forward, backward in ways]
        shares = [
            np.where(total > 0, forward / np.where(total > 0, total, 1.0), 0.0)
            for total, (forward, _) in zip(both, ways, strict=True)
        ]
        layers = dict(zip(body, both, strict=False))
        ends_s = both[-3], both[-2] + both[-1]
        trip_s = sum(layers[kind] * count for kind, count in graph.counts.items())
        return cls(
            pp=branches["pp"],
            micro_batches=branches["micro_batches"],
            unit_s=np.asarray(sum(layers[k] * n for k, n in units.layers.items())),
            first_s=ends_s[0],
            last_s=ends_s[1],
            trip_s=np.asarray(trip_s + sum(ends_s)),
            forward_share=np.maximum.reduce(shares),
            turns=problem.machine.turns,
            units=units.count - units.leading,
        )

    def seconds(self, most: Array | None = None, below_s: float = inf) -> Array:
        """At least the seconds of each; infinite where it is *below_s* of no cut, or of
        none whose stages have up to *most* [row, stage] units."""
        low = np.maximum.reduce([self.trip_s / self.pp, self.first_s, self.last_s])
        high = np.minimum(self.trip_s, below_s / self.micro_batches)
        none = self._room(high, most) < self.units
        for _ in range(HALVINGS):
            half = (low + high) / 2
            enough = self._room(half, most) >= self.units
            low, high = np.where(enough, low, half), np.where(enough, half, high)
        return np.where(none, inf, self._bound(low))

    def pace_s(self, below_s: float) -> Array:
        """What the slowest stage takes at most of a cut that takes less than
        *below_s*."""
        low, high = np.zeros(len(self.pp)), below_s / self.micro_batches
        for _ in range(HALVINGS):
            half = (low + high) / 2
            faster = self._bound(half) < below_s
            low, high = np.where(faster, half, low), np.where(faster, high, half)
        return np.asarray(high)

    def _bound(self, slowest_s: Array) -> Array:
        found = any_cut_s(
            trip_s=self.trip_s,
            slowest_s=slowest_s,
            forward_share=self.forward_share,
            pp=self.pp,
            micro_batches=self.micro_batches,
        )
        busy_s = self.micro_batches * self.trip_s / self.pp
        return shared_bound_s(found, busy_s, turns=self.turns, pp=self.pp)

    def _room(self, slowest_s: Array, most: Array | None) -> Array:
        """For how many units there are, where no stage takes longer."""
        first, middle, last = (
            np.maximum(np.floor((slowest_s - own) / self.unit_s + _FEWER), 0.0)
            for own in (self.first_s, 0.0, self.last_s)
        )
        if most is None:
            return np.asarray(first + (self.pp - 2) * middle + last)
        rows = np.arange(len(most))
        between = np.minimum(most, middle[:, None]).sum(axis=1)
        for stage, own in ((0, first), (self.pp - 1, last)):
            held = most[rows, stage]
            between = between + np.minimum(held, own) - np.minimum(held, middle)
        return np.asarray(between)


@dataclass(frozen=True, kw_only=True)
class CutRoom:
    """How many units the stages of candidates have room for, of *at_most* each; units
    that are leading take none."""

    problem: Problem
    units: Units
    columns: Columns
    at_most: Array

    def keeps_pace(self, pace_s: Array) -> Array:
        """Which rows have a cut none of whose stages takes longer than *pace_s*, with
        what data parallelism adds to their passes."""
        pp, row = self.columns.pp, np.repeat(np.arange(len(self.columns)), 3)
        stage = np.stack([0 * pp, np.minimum(1, pp - 1), pp - 1], axis=1).ravel()

        def fits(where: Array, count: Array) -> Array:
            forward_s, backward_s = self._stages(
                row[where], stage[where], count
            ).passes_s
            return forward_s + backward_s <= pace_s[row[where]] * (1 + _FEWER)

        most = _largest(fits, 0 * row, self.at_most[row]).reshape(-1, 3)
        room = most[:, 0] + np.maximum(pp - 2, 0) * most[:, 1] + most[:, 2]
        return np.asarray(room >= self._all)

    def may_fit(self) -> Array:
        """Which rows have memory for all units, at a glance: later stages of 1F1B hold
        fewer micro-batches, so that the last of some that follow each other has room
        for as many units as any of them."""
        pp = self.columns.pp
        row = np.repeat(np.arange(len(pp)), 2 + GLANCES)
        ends = [(pp - 2) * part // GLANCES for part in range(GLANCES + 1)]
        each = [end - start for start, end in pairwise(ends)]
        middle = [np.maximum(end, 1) for end in ends[1:]]
        stage = np.stack([0 * pp, *middle, pp - 1], axis=1).ravel()
        counts = np.stack([0 * pp + 1, *each, 0 * pp + 1], axis=1)
        room = (counts * self._held(row, stage).reshape(counts.shape)).sum(axis=1)
        return np.asarray(room >= self._all)

    def by_stage(self) -> Array:
        """How many each stage has memory for, [row, stage]; 0 beyond pp, less than that
        sums to nothing where a stage cannot be."""
        pp = self.columns.pp
        row, stage = np.nonzero(np.arange(pp.max(initial=1)) < pp[:, None])
        found = np.zeros((len(pp), int(pp.max(initial=1))))
        found[row, stage] = self._held(row, stage)
        return found

    def take(self, rows: Array) -> CutRoom:
        return replace(
            self, columns=self.columns.take(rows), at_most=self.at_most[rows]
        )

    @property
    def _all(self) -> int:
        return self.units.count - self.units.leading

    def _held(self, row: Array, stage: Array) -> Array:
        """How many units each *stage* of each *row* has memory for."""
        fewest = np.where((stage > 0) & (stage < self.columns.pp[row] - 1), 1, 0)
        limit = self.problem.memory_limit_bytes

        def fits(where: Array, count: Array) -> Array:
            stages = self._stages(row[where], stage[where], count)
            return np.asarray(stages.needed_bytes <= limit)

        return _largest(fits, fewest, np.maximum(self.at_most[row], fewest))

    def _stages(self, row: Array, stage: Array, count: Array) -> StageRows:
        layers = self.units.numbered(count, np.zeros_like(count))
        return StageRows.of(self._blocks, row, layers, stage)

    @cached_property
    def _blocks(self) -> Rows:
        return Rows(columns=self.columns, book=self.problem.book)


def keep_too_much(
    problem: Problem, units: Units, branches: Table, at_most: Array
) -> Array:
    """Of which *branches* what the layers keep alone is more than the stages of any cut
    have memory for, with *at_most* units each."""
    floor = Floor.of(problem, branches)
    saved = sum(floor.saved_bytes(kind) * n for kind, n in units.layers.items())
    pp, m = branches["pp"][:, None], branches["micro_batches"][:, None]
    stage = np.arange(pp.max(initial=1))
    held = np.minimum(pp - stage, m) * np.asarray(saved)[:, None]
    most = problem.memory_limit_bytes / np.maximum(held, 1.0)
    room = np.floor(np.minimum(most, at_most[:, None])) * (stage < pp)
    return np.asarray(room.sum(axis=1) < units.count - units.leading)


def _largest(
    fits: Callable[[Array, Array], Array], fewest: Array, most: Array
) -> Array:
    """The largest number between *fewest* and *most* at each place that *fits* there;
    `_NOWHERE` where none does."""
    places = np.arange(len(most))
    whole = fits(places, most)
    low = np.where(whole, most, fewest - 1)
    high = np.where(whole, most, most - 1)
    while (left := np.flatnonzero(low < high)).size:
        half = (low[left] + high[left] + 1) // 2
        good = fits(left, half)
        low[left] = np.where(good, half, low[left])
        high[left] = np.where(good, high[left], half - 1)
    return np.where(low < fewest, _NOWHERE, low)
