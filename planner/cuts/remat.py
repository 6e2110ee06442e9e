"""Cuts of the layers with retention chosen stage by stage.

No cut takes less than one that keeps everything, nor needs less than one that makes
everything again: between these a family may hold a better cut, and what it may come to
is guessed from mixtures of presets (`CutTable.mixed`). The most promising cuts get the
cheapest retention that fits (`costmodel.simulation.remat_auto`).
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from math import inf
from typing import Final

import numpy as np

from costmodel.layout import AUTO, RECOMPUTES, Columns, Uniform
from planner.cuts.families import Families, Family
from planner.cuts.table import Cut, CutTable
from planner.problem import Space
from profiles.arrays import Array

NONE, FULL = RECOMPUTES.index("none"), RECOMPUTES.index("full")
FITTED: Final = 2  # cuts of a family that are fitted
MOVES_FITTED: Final = 8  # of a cut, before it is left as it is
MOST_GUESSED: Final = 12  # families whose retention by stage is guessed
MOST_FITTED: Final = 6  # of them that are fitted
MISSES: Final = 2  # of them in a row that bring nothing
HOPELESS: Final = 1.03  # times the best: what is guessed to take longer is not fitted


@dataclass(kw_only=True)
class FittedFamilies(Families):
    """The same with retention chosen stage by stage: a stage makes again what its
    memory asks for. No cut takes less than one that keeps everything and needs what
    one needs that makes everything again; which are promising is guessed, but the
    *first*, the best with one preset for all stages, is always tried."""

    first: Family | None = None
    guessed: list[tuple[float, Family]] = field(default_factory=list)

    def prove(self) -> None:
        """Simulate the most promising; what is left stays open."""
        if self.first is not None and not self.clock.over:
            kept = making_again(self.first.columns, NONE)
            self._price(replace(self.first, columns=kept, bound=0.0, table=None))
            while self.guessed:
                self._try(self.guessed.pop()[1])
        while not self.clock.over and self._priced < MOST_GUESSED:
            family = self._next()
            if family is None:
                break
            self._price(family)
            self._settled = min(self._settled, family.bound)
        misses = 0
        for guess, family in sorted(self.guessed, key=lambda one: one[0])[:MOST_FITTED]:
            if self.clock.over or misses == MISSES or guess > self.value * HOPELESS:
                return
            before = self.value
            self._try(family)
            misses = misses + 1 if self.value == before else 0

    def _leanest(self, recompute: Array) -> Array:
        return np.full_like(recompute, FULL)

    def _price(self, family: Family) -> None:
        self._priced += 1
        most = min(family.most_units + self.units.leading, self.units.count)
        known, columns = (self.problem, self.units), family.columns
        below_s = self.value / self.unit
        kept = CutTable.of(*known, columns, most, leanest=self._lean(columns))
        family.bound = max(family.bound, kept.bound_s(below_s) * self.unit)
        if family.bound >= self._enough:
            return
        presets = [making_again(columns, code) for code in self._presets]
        family.table = CutTable.mixed(*known, presets, most)
        guess = family.table.bound_s(below_s) * self.unit
        if guess < inf:
            self.guessed.append((guess, family))

    def _choice(self, family: Family, cut: Cut) -> Uniform:
        return replace(super()._choice(family, cut), recompute=AUTO)

    @property
    def _presets(self) -> list[int]:
        """Those of the space, keeping all first."""
        found = [code for (code,) in Space.of(self.problem).axes.recomputes()]
        return sorted(found, key=lambda code: code != NONE)


def making_again(columns: Columns, code: int) -> Columns:
    return replace(columns, recompute=np.full_like(columns.recompute, code))
