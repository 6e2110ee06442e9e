"""What no cut of the layers into 1F1B stages can beat, many candidates at once.

    work       a stage whose slowest takes s has at most ⌊s / unit⌋ units of layers, and
               the ends have fewer by the embedding and the head       → any_cut_s
    memory     a stage that holds k micro-batches has at most as many units as fit
    together   the least s at which the stages have room for all layers

Leading layers of another kind count for the trip alone.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import inf

import numpy as np

from costmodel.columns import Columns
from costmodel.makespan_cuts import any_cut_s
from costmodel.stage_rows import StageRows
from costmodel.turns import shared_bound_s
from planner.cut_units import Units
from planner.floors import ENDS, Floor
from planner.problem import Problem
from planner.table import Array, Table

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


def keeps_pace(
    problem: Problem, units: Units, columns: Columns, pace_s: Array, at_most: Array
) -> Array:
    """Which rows have a cut none of whose stages takes longer than *pace_s*, with what
    data parallelism adds to their passes; stages have up to *at_most* units."""
    pp, row = columns.pp, np.repeat(np.arange(len(columns)), 3)
    stage = np.stack([0 * pp, np.minimum(1, pp - 1), pp - 1], axis=1).ravel()

    def fits(where: Array, count: Array) -> Array:
        rows = _stages(problem, units, columns, row[where], stage[where], count)
        forward_s, backward_s = rows.passes_s
        return forward_s + backward_s <= pace_s[row[where]] * (1 + _FEWER)

    most = _largest(fits, 0 * row, at_most[row]).reshape(-1, 3)
    room = most[:, 0] + np.maximum(pp - 2, 0) * most[:, 1] + most[:, 2]
    return np.asarray(room >= units.count - units.leading)


def most_units(
    problem: Problem, units: Units, columns: Columns, at_most: Array
) -> Array:
    """How many units that are not leading each stage of each row has memory for, up to
    *at_most* of the row, [row, stage]; 0 beyond pp, less than that sums to nothing
    where a stage cannot be."""
    pp = columns.pp
    row, stage = np.nonzero(np.arange(pp.max(initial=1)) < pp[:, None])
    fewest = np.where((stage > 0) & (stage < pp[row] - 1), 1, 0)

    def fits(where: Array, count: Array) -> Array:
        rows = _stages(problem, units, columns, row[where], stage[where], count)
        return np.asarray(rows.needed_bytes <= problem.memory_limit_bytes)

    low = _largest(fits, fewest, np.maximum(at_most[row], fewest))
    found = np.zeros((len(columns), int(pp.max(initial=1))))
    found[row, stage] = low
    return found


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


def _stages(
    problem: Problem,
    units: Units,
    columns: Columns,
    row: Array,
    stage: Array,
    count: Array,
) -> StageRows:
    """Stages of *count* units, none of them leading."""
    return StageRows(
        columns=columns.take(row),
        book=problem.book,
        layers=units.numbered(count, np.zeros_like(count)),
        rank=stage,
    )
