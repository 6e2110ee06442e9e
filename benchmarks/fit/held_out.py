"""How well a few runs of a family foretell its other runs, by fits that saw none of it.

Coefficients are those fitted without the run's family, or without its whole source (one
Gauss-Newton step from the fit of all). Runs are given at random, the rest is foretold,
and prices are taken as linear in the logarithms of coefficients.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from benchmarks.fit_runs import Fit
from benchmarks.run_times import Timed, by
from costmodel.machine import step_names
from costmodel.runs.bayes import updated
from costmodel.runs.prior import Prior

Floats = NDArray[np.float64]
GIVEN = (0, 1, 2, 3, 5, 10)
FEWEST = 4  # runs of a family
MOST_FORETOLD = 60
REPEATS = 3
INSIDE = 1.2816  # deviations: p10 to p90


@dataclass(frozen=True, slots=True, kw_only=True)
class Foretold:
    """Runs of a family that were foretold from so many *given*: log(measured /
    estimated), and its standard deviation as it was said."""

    source: str
    family: str
    given: int
    repeat: int
    misses: Floats
    deviations: Floats

    @property
    def errors(self) -> Floats:
        """|estimated / measured - 1|."""
        return np.asarray(np.abs(np.expm1(-self.misses)))

    @property
    def inside(self) -> Floats:
        return np.asarray(np.abs(self.misses) < INSIDE * self.deviations)


@dataclass(frozen=True, kw_only=True)
class HeldOut:
    """Runs, their fit, and by which column they are left out of it."""

    runs: Sequence[Timed]
    fit: Fit
    column: str  # family or source

    @cached_property
    def counted(self) -> Sequence[bool]:
        return [not item.rounded for item in self.runs]

    def families(self) -> Iterator[tuple[str, list[int]]]:
        """Those with runs enough."""
        for family, rows in by(self.runs, "family").items():
            own = [row for row in rows if self.counted[row]]
            if len(own) >= FEWEST:
                yield family, own

    def foretold(
        self, prior: Prior, given: Sequence[int] = GIVEN, repeats: int = REPEATS
    ) -> Iterator[Foretold]:
        """Every family, so many of its runs *given*, several times."""
        for family, rows in self.families():
            change, covariance = self._without(self.runs[rows[0]].of(self.column))
            misses = -(self.fit.misses + self.fit.jacobian @ change)
            for repeat in range(repeats):
                order = np.random.default_rng((repeat, len(rows))).permutation(rows)
                for count in given:
                    seen = order[: min(count, len(rows) // 2)]
                    rest = order[len(seen) :][:MOST_FORETOLD]
                    found = self._update(prior, covariance, misses, seen, rest)
                    yield Foretold(
                        source=self.runs[rows[0]].of("source"),
                        family=family,
                        given=count,
                        repeat=repeat,
                        misses=found[0],
                        deviations=found[1],
                    )

    def _without(self, part: str) -> tuple[Floats, Floats]:
        if part not in self._fits:
            rows = by(self.runs, self.column)[part]
            self._fits[part] = self.fit.solved(rows)
        return self._fits[part]

    @cached_property
    def _fits(self) -> dict[str, tuple[Floats, Floats]]:
        return {}

    def _update(
        self,
        prior: Prior,
        published: Floats,
        misses: Floats,
        seen: NDArray[np.int64],
        rest: NDArray[np.int64],
    ) -> tuple[Floats, Floats]:
        both = np.concatenate([seen, rest])
        names, paces = self._paces(both)
        slopes = np.hstack([self.fit.jacobian[both], paces])
        before = np.zeros((slopes.shape[1],) * 2)
        spreads = [item.spread for item in self.fit.fitted.entries]
        drift = (prior.drift * np.array(spreads)) ** 2
        count = len(spreads)
        before[:count, :count] = published + np.diag(drift)
        own = prior.covariance(names, replace(self.fit.fitted, entries=()))
        before[count:, count:] = own
        told, asked = slopes[: len(seen)], slopes[len(seen) :]
        mean, after, noise = np.zeros(len(before)), before, prior.noise
        if len(seen):
            found = updated(before, told, misses[seen], prior.noise)
            mean, after, noise = found.mean, found.covariance, found.noise
        spread = np.einsum("ij,jk,ik->i", asked, after, asked) + noise**2
        return misses[rest] - asked @ mean, np.sqrt(spread)

    def _paces(self, rows: NDArray[np.int64]) -> tuple[list[str], Floats]:
        """The paces that runs hang on, and which run on which."""
        each = [self._names(self.runs[row]) for row in rows]
        names = list(dict.fromkeys(name for one in each for name in one))
        table = [[float(name in one) for name in names] for one in each]
        return names, np.array(table)

    def _names(self, item: Timed) -> list[str]:
        on, precision = item.machine, item.layout.precision_name
        names = (on.framework.name, on.device.name, precision)
        return list(step_names(*names, item.job, sampled=False))
