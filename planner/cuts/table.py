"""`CutTable`: every stage that a candidate may have, priced; and its cuts by them.

    passes[s, n, d], bytes[s, n, d]   stage s with n units, d of them leading
    within(t)     the first stages as long as may be, no pass longer than t
    bound_s       any_cut_s of the shortest slowest pass, and of those above it

Of the stages before the one that a cut needs no more than t for, the first ones may be
as long as can be: a cut that ends them earlier leaves more to the others. So if any cut
has no pass longer than t, `within` finds one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import inf

import numpy as np

from costmodel.batched import Rows, StageRows, any_cut_s
from costmodel.layout import Columns
from costmodel.timeline import shared_bound_s
from planner.cuts.units import Units
from planner.problem import Problem
from planner.search import least_mixture
from profiles.arrays import Array

_ROUNDING = 1e-12
Cut = tuple[int, ...]  # units of each stage


@dataclass(frozen=True, kw_only=True, eq=False)
class CutTable:
    """Of a candidate of one row: arrays [stage, units, leading], infinite where the
    stage does not fit. Seconds of `beside`, `tied` and `other` are of any cut."""

    units: Units
    pp: int
    micro_batches: int
    forward_s: Array
    both_s: Array
    tail_s: Array
    update_s: Array
    beside_s: float
    other_s: float
    turns: float

    @classmethod
    def of(
        cls, problem: Problem, units: Units, columns: Columns, at_most: int
    ) -> CutTable:
        """Of the one row of *columns*, with stages of up to *at_most* units."""
        return next(cls.each(problem, units, columns, [at_most]))

    @classmethod
    def each(
        cls, problem: Problem, units: Units, columns: Columns, at_most: Sequence[int]
    ) -> Iterator[CutTable]:
        """Of every row of *columns*, priced together."""
        stages = _Stages(problem, units, columns, tuple(at_most))
        fits = stages.needed_bytes <= problem.memory_limit_bytes
        return stages.tables(fits, *stages.passes_s)

    @classmethod
    def fitted(
        cls,
        problem: Problem,
        units: Units,
        ways: Sequence[Columns],
        at_most: Sequence[int],
    ) -> Iterator[tuple[CutTable, CutTable]]:
        """What retention by stage may come to of candidates, a row each of every one of
        *ways*, the first of which keeps all and the last all but nothing: what no cut
        is faster than, and stages with as many layers of one preset and as many of
        another as their memory asks for. All together, as most of the time is beside
        the numbers."""
        limit = problem.memory_limit_bytes
        stages = _Stages(problem, units, ways[0], tuple(at_most))
        every = replace(
            stages,
            columns=Columns.concatenate(ways),
            at_most=tuple(at_most) * len(ways),
        )
        needed = every.needed_bytes.reshape(len(ways), -1)
        forward_s, backward_s = (one.reshape(len(ways), -1) for one in every.passes_s)
        mixture = least_mixture(forward_s + backward_s, needed, limit)
        mixed = stages.tables(
            mixture.fits, mixture.of(forward_s), mixture.of(backward_s)
        )
        kept = stages.tables(needed[-1] <= limit, forward_s[0], backward_s[0])
        yield from zip(kept, mixed, strict=True)

    def within(self, slowest_s: float) -> Cut | None:
        """The cut without a longer pass whose first stages are as long as may be."""
        start, found = 0, []
        for stage in range(self.pp):
            most = self._longest(stage, start, slowest_s)
            if most is None:
                return None
            left = self.units.count - start - most
            most -= max(self._behind(stage) - left, 0)
            if most < 0:
                return None
            found.append(most)
            start += most
        return tuple(found) if start == self.units.count else None

    def mirrored(self, slowest_s: float) -> Cut | None:
        """The same whose last stages are; of alike layers."""
        end, found = self.units.count, []
        for stage in range(self.pp - 1, -1, -1):
            kept = max(stage - 1, 0)  # for the middle stages before
            most = min(end - kept, self.both_s.shape[1] - 1)
            counts = np.arange(most + 1)
            leading = self.units.leading_of(end - counts, counts)
            fits = self.both_s[stage, counts, leading] <= slowest_s * (1 + _ROUNDING)
            if not fits.any():
                return None
            found.append(int(np.flatnonzero(fits)[-1]))
            end -= found[-1]
        return tuple(found[::-1]) if end == 0 else None

    def fits(self, cut: Cut) -> bool:
        """Whether all stages of *cut* do, and were priced."""
        start = 0
        for stage, count in enumerate(cut):
            if count >= self.both_s.shape[1]:
                return False
            leading = self.units.leading_of(start, count)
            if self.both_s[stage, count, leading] == inf:
                return False
            start += count
        return True

    @cached_property
    def paces_s(self) -> list[float]:
        """What a slowest stage may take, ascending, from the least of any cut on."""
        every = np.unique(self.both_s[np.isfinite(self.both_s)])
        low, high = 0, len(every)
        while low < high:
            half = (low + high) // 2
            if self.within(float(every[half])) is None:
                low = half + 1
            else:
                high = half
        return [float(one) for one in every[low:]]

    def bound_s(self, below_s: float = inf) -> float:
        """No cut takes less; infinite where none fits, or takes less than *below_s*."""
        return min(self._bounds(below_s), default=inf)

    def bound_of(self, cut: Cut) -> float:
        """What *cut* takes at the least; infinite where it does not fit."""
        if not self.fits(cut):
            return inf
        start, pace_s = 0, 0.0
        for stage, count in enumerate(cut):
            leading = self.units.leading_of(start, count)
            pace_s = max(pace_s, float(self.both_s[stage, count, leading]))
            start += count
        return float(self._passes_s(pace_s)) + self.other_s

    def tried(self) -> Iterator[Cut]:
        """Cuts that are likely to be fast, those of the shortest slowest pass first."""
        seen = set()
        for pace_s in self.paces_s:
            for cut in (self.within(pace_s), self.mirrored(pace_s)):
                if cut is not None and cut not in seen:
                    seen.add(cut)
                    yield cut

    def _bounds(self, below_s: float) -> Iterator[float]:
        for pace_s in self.paces_s:
            passes_s = float(self._passes_s(pace_s))
            if passes_s + self.other_s >= below_s:
                yield inf
                return
            yield passes_s + self._end_s(pace_s) + self.other_s

    def _passes_s(self, pace_s: float) -> Array:
        found = any_cut_s(
            trip_s=self._trip_s,
            slowest_s=pace_s,
            forward_share=self._forward_share,
            pp=self.pp,
            micro_batches=self.micro_batches,
            short_before_s=self._short_before_s(pace_s),
        )
        busy_s = np.asarray(self.micro_batches * self._trip_s / self.pp)
        return shared_bound_s(
            found, busy_s, turns=self.turns, pp=np.asarray(float(self.pp))
        )

    def _end_s(self, pace_s: float) -> float:
        """After the last backward, at the ends with the fewest units there can be."""
        ends = []
        most = [self._most(stage, pace_s) for stage in range(self.pp)]
        for stage in (0, self.pp - 1):
            others = sum(most) - most[stage]
            fewest = min(max(self.units.count - others, 0), most[stage])
            within = (self.both_s[stage] <= pace_s * (1 + _ROUNDING))[fewest:]
            tail_s = self.tail_s[0][fewest:] if stage == 0 else 0.0
            taken_s = np.where(within, tail_s + self.update_s[stage][fewest:], inf)
            ends.append(float(taken_s.min()))
        return max(ends)

    def _short_before_s(self, pace_s: float) -> float:
        """What the first stages, for want of memory, fall short of a slowest one behind
        them; what the sends to them take makes up for it."""
        short_s = 0.0
        for stage in range(self.pp):
            own = self.both_s[stage]
            own = own[own <= pace_s * (1 + _ROUNDING)]
            if not len(own) or own.max() >= pace_s * (1 - _ROUNDING):
                return max(short_s, 0.0)
            short_s += pace_s - float(own.max()) - 2 * self.beside_s
        return max(short_s, 0.0)

    def _most(self, stage: int, pace_s: float) -> int:
        within = (self.both_s[stage] <= pace_s * (1 + _ROUNDING)).any(axis=1)
        return int(np.flatnonzero(within).max(initial=0))

    def _longest(self, stage: int, start: int, slowest_s: float) -> int | None:
        """How many units *stage* may have from *start*."""
        most = min(self.units.count - start, self.both_s.shape[1] - 1)
        counts = np.arange(most + 1)
        leading = self.units.leading_of(start, counts)
        fits = self.both_s[stage, counts, leading] <= slowest_s * (1 + _ROUNDING)
        return int(np.flatnonzero(fits)[-1]) if fits.any() else None

    def _behind(self, stage: int) -> int:
        """How many units the middle stages behind *stage* have at the least."""
        return max(self.pp - 2 - stage, 0)

    @cached_property
    def _forward_share(self) -> float:
        there = np.isfinite(self.both_s)
        return float((self.forward_s[there] / self.both_s[there]).max(initial=0.0))

    @cached_property
    def _trip_s(self) -> float:
        """The least of any cut: a micro-batch through all stages and back."""
        every, most = self.units.count, self.both_s.shape[1] - 1
        best = np.where(np.arange(every + 1) == 0, 0.0, inf)
        for stage in range(self.pp):
            after = np.full(every + 1, inf)
            for count in range(most + 1):
                start = np.arange(every + 1 - count)
                leading = self.units.leading_of(start, count)
                taken = best[start] + self.both_s[stage, count, leading]
                after[count:] = np.minimum(after[count:], taken)
            best = after
        return float(best[-1]) + 2 * (self.pp - 1) * self.beside_s


@dataclass(frozen=True)
class _Stages:
    """All stages of up to *at_most* units of each row of *columns*, one after the
    other."""

    problem: Problem
    units: Units
    columns: Columns
    at_most: tuple[int, ...]

    def tables(
        self, fits: Array, forward_s: Array, backward_s: Array
    ) -> Iterator[CutTable]:
        """One a row, of the stages that *fits* says do, with the seconds given."""
        rows, problem = self.rows, self.problem
        ends = np.cumsum([np.prod(shape) for shape in self._shapes]).tolist()
        there = fits & self._there
        passes = forward_s, forward_s + backward_s, rows.tail_s, rows.update_s
        size = len(there)
        known = [np.where(there, np.broadcast_to(one, size), inf) for one in passes]
        beside_s, tied_s = (
            np.broadcast_to(one, size) for one in (rows.beside_s, rows.tied_s)
        )
        for start, end, shape in zip([0, *ends], ends, self._shapes, strict=False):
            forward, both, tail, update = (
                one[start:end].reshape(shape) for one in known
            )
            yield CutTable(
                units=self.units,
                pp=shape[0],
                micro_batches=int(rows.micro_batches[start]),
                forward_s=forward,
                both_s=both,
                tail_s=tail,
                update_s=update,
                beside_s=float(beside_s[start]),
                other_s=float(tied_s[start]) + problem.machine.step_s,
                turns=problem.machine.turns,
            )

    @cached_property
    def _shapes(self) -> list[tuple[int, int, int]]:
        """Stages, units, those of them that are leading, of each row."""
        leading = self.units.leading
        return [
            (int(pp), most + 1, min(leading, most) + 1)
            for pp, most in zip(self.columns.pp, self.at_most, strict=True)
        ]

    @property
    def _there(self) -> Array:
        """Which there may be: a stage in the middle is not empty."""
        row, rank, count, leading = self._places
        middle = (rank > 0) & (rank < self.columns.pp[row] - 1)
        return (leading <= count) & ((count > 0) | ~middle)

    @cached_property
    def rows(self) -> StageRows:
        row, rank, count, leading = self._places
        return StageRows.of(
            Rows(columns=self.columns, book=self.problem.book),
            row,
            self.units.numbered(count, np.minimum(leading, count)),
            rank,
        )

    @property
    def passes_s(self) -> tuple[Array, Array]:
        return self.rows.passes_s

    @property
    def needed_bytes(self) -> Array:
        return np.asarray(self.rows.needed_bytes)

    @cached_property
    def _places(self) -> tuple[Array, ...]:
        """The row, stage, units and leading units of each."""
        found = [np.indices(shape).reshape(3, -1) for shape in self._shapes]
        row = np.repeat(np.arange(len(found)), [one.shape[1] for one in found])
        rank, count, leading = np.concatenate(found, axis=1)
        return row, rank, count, leading
