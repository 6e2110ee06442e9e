"""How far off an estimate may be: the spread of calibration residuals.

The ratio measured/estimated is taken as log-normal; its spread is that of the public
runs priced with the same kind of rates (`benchmarks/validate.py` prints it), wider
where a device borrows its rates.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import exp, log
from statistics import NormalDist
from typing import Final

from costmodel.footprint import Footprint
from costmodel.price_sources import PriceSources
from costmodel.rates import GENERIC, Rates

_P90: Final = NormalDist().inv_cdf(0.9)

# Standard deviation of log(measured / estimated): the 80 % quantile of its size over
# the published runs that are compared, over 1.28. For step time every source weighs the
# same (63 rows of devices with a fit of their own, 1,615 of others); for memory each
# framework has its own (`footprint`).
OWN_STEP: Final = 0.18
BORROWED_STEP: Final = 0.25
GENERIC_STEP: Final = 0.5  # [assumed] twice the worst that is known
# Separate launches of one layout on an idle two-core machine: 1.3 to 4 % apart.
STEP_NOISE: Final = 0.04


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """Standard deviations of log(measured/estimated) for step time and peak memory."""

    step_sigma: float
    memory_sigma: float

    @property
    def step_time(self) -> tuple[float, float]:
        """p10 and p90 as factors of the estimate."""
        return exp(-_P90 * self.step_sigma), exp(_P90 * self.step_sigma)

    @property
    def peak_memory(self) -> tuple[float, float]:
        return exp(-_P90 * self.memory_sigma), exp(_P90 * self.memory_sigma)

    def probability_below(self, ratio: float) -> float:
        """Chance that the measured peak is at most *ratio* times the estimate."""
        return NormalDist(0.0, self.memory_sigma).cdf(log(ratio))

    def share_for(self, probability: float) -> float:
        """What share of a capacity an estimate may be to fit with *probability*."""
        return exp(-self.memory_sigma * NormalDist().inv_cdf(probability))


def spread_of(
    rates: Rates, footprint: Footprint, sources: PriceSources | None = None
) -> Spread:
    """The spread of prices made with *rates*; of samples, where there are some.

    A busy machine or a wrong clock shifts all samples alike, so their deviations add
    up as they are, and so does that of the share without samples. A step never
    repeats better than `STEP_NOISE`.
    """
    step = _of_rates(rates)
    if sources is not None:
        known = 1.0 - sources.roofline
        step = max(known * sources.sigma + sources.roofline * step, STEP_NOISE)
    return Spread(step_sigma=step, memory_sigma=footprint.memory_sigma)


def _of_rates(rates: Rates) -> float:
    if rates.kin is None:
        return OWN_STEP
    return GENERIC_STEP if rates.kin == GENERIC else BORROWED_STEP
