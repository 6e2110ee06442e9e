"""Cuts of the layers with retention chosen stage by stage.

No cut takes less than one that keeps everything, nor needs less than one that makes
everything again: between these a family may hold a better cut, and what it may come to
is guessed from mixtures of presets (`CutTable.mixed`). The most promising cuts get the
cheapest retention that fits (`costmodel.simulation.remat_auto`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np

from costmodel.layout import AUTO, RECOMPUTES, Columns, Uniform
from planner.cuts.families import Families, Family
from planner.cuts.table import Cut, CutTable
from planner.problem import Space
from planner.search import making_again
from profiles.arrays import Array

NONE, FULL = RECOMPUTES.index("none"), RECOMPUTES.index("full")
FITTED: Final = 2  # cuts of a family that are fitted
MOVES_FITTED: Final = 8  # of a cut, before it is left as it is
MOST_GUESSED: Final = 200  # families whose retention by stage is guessed


@dataclass(kw_only=True)
class FittedFamilies(Families):
    """The same with retention chosen stage by stage: a stage makes again what its
    memory asks for. No cut takes less than one that keeps everything and needs what
    one needs that makes everything again. No guess is above what comes of it [measured:
    60 families of random questions], so that all that may be better are tried."""

    guessed: list[tuple[float, Family]] = field(default_factory=list)

    def prove(self) -> None:
        """Guess all, and simulate the most promising; what is left stays open."""
        while not self.clock.over and self._priced < MOST_GUESSED:
            if not (some := self._some()):
                break
            self._guess(some)
        for guess, family in sorted(self.guessed, key=lambda one: one[0]):
            if self.clock.over or guess >= self._enough:
                return
            self._try(family)

    def _guess(self, families: Sequence[Family]) -> None:
        """Bound *families* by stages that keep all, guess what mixtures come to."""
        self._priced += len(families)
        columns = Columns.concatenate([one.columns for one in families])
        ways = [making_again(columns, code) for code in self._presets]
        most = [self._most(one) for one in families]
        below_s = self.value / self.unit
        tables = CutTable.fitted(self.problem, self.units, ways, most)
        for family, (kept, mixed) in zip(families, tables, strict=True):
            bound = kept.bound_s(below_s) * self.unit
            family.bound = max(family.bound, bound)
            self._settled = min(self._settled, family.bound)
            if family.bound >= self._enough:
                continue
            family.table = mixed
            guess = mixed.bound_s(below_s) * self.unit
            if guess < self._enough:
                self.guessed.append((guess, family))

    def _leanest(self, recompute: Array) -> Array:
        return np.full_like(recompute, FULL)

    def _choice(self, family: Family, cut: Cut) -> Uniform:
        return replace(super()._choice(family, cut), recompute=AUTO)

    @property
    def _presets(self) -> list[int]:
        """Those of the space, keeping all first and making all again last."""
        found = [code for (code,) in Space.of(self.problem).axes.recomputes()]
        return [NONE, *(one for one in found if one not in (NONE, FULL)), FULL]
