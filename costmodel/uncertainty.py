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

from costmodel.rates import GENERIC, Rates

_P90: Final = NormalDist().inv_cdf(0.9)

# Standard deviation of log(measured / estimated): the 80 % quantile of its size over
# the published runs that are compared, over 1.28. For step time every source weighs the
# same (63 rows of devices with a fit of their own, 1,615 of others); 187 memory rows.
OWN_STEP: Final = 0.18
BORROWED_STEP: Final = 0.25
GENERIC_STEP: Final = 0.5  # [assumed] twice the worst that is known
MEMORY: Final = 0.29


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


def spread_of(rates: Rates) -> Spread:
    """The spread of prices made with *rates*."""
    if rates.kin is None:
        return Spread(step_sigma=OWN_STEP, memory_sigma=MEMORY)
    step = GENERIC_STEP if rates.kin == GENERIC else BORROWED_STEP
    return Spread(step_sigma=step, memory_sigma=MEMORY)
