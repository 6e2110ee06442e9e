"""Do as many runs fit as were said to, and do peaks lie where they were said to?

    MESHWRIGHT_DATA=<folder> python -m benchmarks.odds [FILE.csv]

FILE.csv is runs.csv of the folder unless given. Of runs that were said to fit with some
probability, how many ran: of sources that print failures too, since elsewhere only what
ran was published; then of each framework, how far printed peaks are from estimates, and
the share that lies in its interval (p10 to p90, so that 80 % should).
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean

import numpy as np

from benchmarks.published_runs import asked_runs
from costmodel.runs.comparison import Compared
from costmodel.runs.table import read_runs
from costmodel.runs.validate import compare
from costmodel.simulation.uncertainty import P90

ENDS = (0.0, 0.05, 0.25, 0.5, 0.75, 0.95, 0.99, 1.0)
LEVEL = 0.8  # p10 to p90
FEWEST = 3  # peaks of a framework


@dataclass(frozen=True, slots=True, kw_only=True)
class Odds:
    """A run that was said to fit with a probability, and whether it `ran`."""

    said: float
    ran: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Peaks:
    """Of a framework: (measured - estimated) bytes, in the standard deviations that
    each is said to have; and what those are as shares of the estimates."""

    shares: Sequence[float]
    residuals: Sequence[float]

    @property
    def sigma(self) -> float:
        """The mean standard deviation, as a share of the estimate."""
        return fmean(self.shares)

    @property
    def inside(self) -> float:
        """The share within p10 and p90."""
        return fmean(abs(one) <= P90 for one in self.residuals)

    @property
    def seen(self) -> float:
        """Of how many of them a normal's would be that has as many inside `LEVEL`."""
        return float(np.quantile(np.abs(self.residuals), LEVEL)) / P90


def odds(compared: Iterable[Compared]) -> list[Odds]:
    """Every outcome of the sources that print failures."""
    by_source: dict[str, list[Odds]] = defaultdict(list)
    for item in compared:
        if item.verdict is not None and item.priced.price is not None:
            said = item.priced.price.probability_fits
            one = Odds(said=said, ran=item.measured["oom"] == "n")
            by_source[item.run.cell("source")].append(one)
    told = (found for found in by_source.values() if not all(one.ran for one in found))
    return [one for found in told for one in found]


def peaks(compared: Iterable[Compared]) -> dict[str, Peaks]:
    """By framework, those with enough."""
    residuals: dict[str, list[float]] = defaultdict(list)
    shares: dict[str, list[float]] = defaultdict(list)
    for item in compared:
        if item.peaks is not None and item.priced.question is not None:
            assert item.priced.price is not None
            name = item.priced.question.machine.framework.name
            estimated, measured = item.peaks
            spread = item.priced.price.spread_bytes
            residuals[name].append((measured - estimated) / spread)
            shares[name].append(spread / estimated)
    return {
        name: Peaks(shares=shares[name], residuals=found)
        for name, found in sorted(residuals.items())
        if len(found) >= FEWEST
    }


def between(found: Sequence[Odds], low: float, high: float) -> list[Odds]:
    """Those said to fit with *low* or more, and less than *high*; 1 is less than 1."""
    return [one for one in found if low <= one.said < high or high == one.said == 1.0]


def odds_table(found: Sequence[Odds]) -> list[str]:
    lines = [f"{'said to fit':14}{'runs':>6}{'mean':>8}{'ran':>8}"]
    for low, high in pairwise(ENDS):
        here = between(found, low, high)
        if here:
            mean, ran = fmean(one.said for one in here), fmean(one.ran for one in here)
            named = f"{low:.0%} - {high:.0%}"
            lines.append(f"{named:14}{len(here):6}{mean:8.1%}{ran:8.1%}")
    return lines


def peaks_table(found: dict[str, Peaks]) -> list[str]:
    lines = [f"{'framework':20}{'peaks':>6}{'sigma':>8}{'seen':>8}{'inside':>8}"]
    for name, one in found.items():
        many = len(one.residuals)
        lines.append(
            f"{name:20}{many:6}{one.sigma:8.1%}{one.seen:8.2f}{one.inside:8.0%}"
        )
    return lines


def main(arguments: Sequence[str]) -> int:
    path = asked_runs(arguments)
    if path is None:
        return 2
    compared = list(compare(read_runs(path)))
    print("\n".join(odds_table(odds(compared))), end="\n\n")
    print("\n".join(peaks_table(peaks(compared))))
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
