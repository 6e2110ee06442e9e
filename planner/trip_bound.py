"""What no pipeline over several places goes below: what is on its way between them, and
how long each stage waits for it.

To cut bounds (`stage_bound`) this adds what 1F1B does with slow links. A stage with w
stages from it to the end sends w micro-batches before the first comes back; of the
other m − 1 = n · w + r, some wait for n trips, and r pass the slowest stage before
(r counts where there is a trip to wait for, here and below):

    T ≥ Σ_{i<s} (t_i + x_i) + (1 + n) · Σ_{i≥s} (t_i + x_i) + r · max_{i≥s} t_i

Two stages that meet over a slow link take turns at it: the first sends a micro-batch
when the one before the last is back. With w − 2 behind them, and m + 1 − w = 2n + r,

    T ≥ Σ_{i<s} (t_i + x_i) + (1 + n) · (t_s + x_s + t_{s+1}) + (w − 2 + r) · t_s

Gradients are summed behind a stage's last backward, and it is updated behind all that
(`stage_passes`; in what is above, too):

    T ≥ Σ_{i<s} (t_i + x_i) + m · t_s + update_s
    T ≥ Σ_{i<s} (f_i + x_i / 2) + m · t_s + late_s + update_s

where x is the way to the next stage and back (in the sum before s, between places
alone), late_0 is in every sum from the first stage on, and stage s holds min(w, m)
micro-batches. (Paths: `costmodel.makespan`.) F(w, k, d), the least Σ (t + x) over w
stages that hold the layers from k on, on the last d devices, grows from the end; for
the sum before them stands the least of any cut of the first k layers on the other
devices, for the slowest of them the least that one can be.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import inf

import numpy as np

from planner.stage_bound import Late, halved, never
from planner.stage_kinds import Growing, Kind, Sums
from planner.stage_partition import Array
from planner.stage_passes import Stages
from planner.stages_held import StagesHeld


def trip_bound_s(
    stages: StagesHeld,
    *,
    at_least_s: float = 0.0,
    at_most_s: float,
    late: Late = never,
) -> float:
    """Seconds that no partition into *stages* takes less than; the others as
    `cut_bound_s` has them. Options of one size and span cross in the same time."""
    if stages.is_empty:
        return at_most_s
    return halved(_Trips(stages=stages).possible, at_least_s, at_most_s, late)


@dataclass(frozen=True, kw_only=True, eq=False)
class _Trips:
    """What *stages* that fit take at the least, and [layers, devices] → the least sums
    before them."""

    stages: StagesHeld

    @property
    def layers(self) -> int:
        return self.stages.layers

    @property
    def units(self) -> int:
        return self.stages.units

    @property
    def micro_batches(self) -> int:
        return self.stages.micro_batches

    @cached_property
    def before(self) -> tuple[Array, Array]:
        """The least sum there and back, and the least there."""
        return _before(self.stages[0], self.layers, self.units)

    @cached_property
    def shortest(self) -> Array:
        """The least that each layer takes alone."""
        ways = [one for several in self.stages[0].values() for one in several]
        return np.asarray(np.min([np.diagonal(one.both_s) for one in ways], axis=0))

    @cached_property
    def slowest(self) -> Array:
        """[first layer, devices to the end] → the least that the slowest stage is."""
        found = np.full((self.layers + 1, self.units + 1), inf)
        found[self.layers, 0] = 0.0
        for first in reversed(range(self.layers)):
            for kind, ways in self.stages[0].items():
                if not kind.possible:
                    continue
                behind = slice(kind.fewest - kind.size, kind.most - kind.size + 1)
                for one in ways:
                    taken_s = one.both_s[first, first:, None]
                    slowest_s = np.maximum(taken_s, found[first + 1 :, behind])
                    there = found[first, kind.left]
                    np.minimum(there, slowest_s.min(axis=0), out=there)
        return found

    @cached_property
    def late(self) -> bool:
        """Whether any stage's reduction may be."""
        return any(one.is_late for ways in self.stages[0].values() for one in ways)

    def possible(self, most_s: float) -> bool:
        """Whether some partition breaks no bound with *most_s*."""
        behind = Sums.of_none(self.layers, self.units)
        for stages in range(1, min(self.layers, self.units) + 1):
            behind = self._one_more(behind, stages, most_s)
            if np.isfinite(behind.least[0, self.units]):
                return True
            if not np.isfinite(behind.least).any():
                return False
        return False

    def _one_more(self, behind: Sums, stages: int, most_s: float) -> Sums:
        """The least sums over so many stages, of those over one less."""
        before, there = (sums[:, ::-1] for sums in self.before)
        growing, m = Growing(behind), self.micro_batches
        more, passed = divmod(m - 1, stages)
        trips, passed = 1 + more, passed if more else 0
        for kind, ways in self.stages[stages - 1].items():
            if not kind.possible:
                continue
            rest = behind.behind(kind)
            reached = np.flatnonzero(np.isfinite(rest).any(axis=1))
            for one in ways if len(reached) else ():
                each = one.both_s[:, reached, None]
                early_s = before[:-1, None, kind.left]
                left_s = most_s - one.update_s[:, reached, None]
                fits = early_s + m * each <= left_s
                sums = each + rest[None, reached]
                waited_s = trips * sums + _times(passed, each)
                fits &= early_s + waited_s <= left_s
                if stages > 1 and kind.ways.crossed_s:
                    turns_s = self._turns_s(kind, each[:, :, 0], reached, stages)
                    fits[:, :, 0] &= early_s[:, :, 0] + turns_s <= left_s[:, :, 0]
                if self.late:
                    late_s = one.late_s[:, reached, None]
                    sent_s = there[:-1, None, kind.left]
                    fits &= sent_s + m * each + late_s <= left_s
                    fits[0] &= waited_s[0] + late_s[0] <= left_s[0]
                growing.add(kind, np.where(fits, sums, inf).min(axis=1))
        left_s = most_s - before - _times(passed, self.slowest)
        return growing.within(left_s / trips)

    def _turns_s(self, kind: Kind, each: Array, last: Array, stages: int) -> Array:
        """Of stages of *kind* that take *each* and are the *last* of their island, what
        they and the next stage take, which has a layer or more."""
        behind = min(stages - 2, self.micro_batches - 1)
        more, passed = divmod(self.micro_batches - 1 - behind, 2)
        once_s = each + kind.ways.crossed_s + np.append(self.shortest, inf)[last + 1]
        behind += passed if more else 0
        return np.asarray((1 + more) * once_s + _times(behind, each))


def _times(count: int, seconds: Array) -> Array:
    """So many times *seconds*, which may be infinite: never nan."""
    return count * seconds if count else np.zeros(())


def _before(
    kinds: Mapping[Kind, Sequence[Stages]], layers: int, units: int
) -> tuple[Array, Array]:
    """[layers, devices] → the least sums over stages that hold the first layers on the
    first devices, and are not the last: there and back, and there."""
    both = np.full((layers + 1, units + 1), inf)
    both[0, 0] = 0.0
    forward = both.copy()
    for first in range(layers):
        for kind, ways in kinds.items():
            if not kind.possible:
                continue
            start, end = units - kind.most, units - kind.fewest + kind.size
            before = slice(start, end - kind.size + 1)
            after = slice(start + kind.size, end + 1)
            for one in ways:
                late_s = one.late_s[first, first:, None] * (first == 0)
                crossed_s = kind.ways.crossed_s
                for known, taken_s, way_s in (
                    (both, one.both_s[first, first:, None] + late_s, crossed_s),
                    (forward, one.forward_s[first, first:, None], crossed_s / 2),
                ):
                    sums = known[first, before][None] + taken_s
                    sums[:-1, -1] += way_s
                    there = known[first + 1 :, after]
                    np.minimum(there, sums, out=there)
    return both, forward
