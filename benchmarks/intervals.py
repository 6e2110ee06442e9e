"""Intervals of what was timed side by side, at 95 %.

median_interval   of pairs, by their order alone (the sign test)
ratio_interval    of one thing's seconds over another's, round by round (Student's t)
"""

from __future__ import annotations

from collections.abc import Sequence
from math import exp, log
from statistics import fmean, stdev

from scipy.stats import binom, t

CONFIDENCE = 0.95


def median_interval(values: Sequence[float]) -> tuple[float, float]:
    """Ends of the interval that has the median with 95 %, whatever the distribution.

    From the k-th smallest to the k-th largest, k as large as the sign test allows
    (Conover, Practical Nonparametric Statistics, section 3.2). Raises ValueError for
    fewer than six values, which have none.

    >>> median_interval(range(1, 16))
    (4, 12)
    """
    ordered, size = sorted(values), len(values)
    outside = int(binom.ppf((1 - CONFIDENCE) / 2, size, 0.5))
    # `outside` values or more beyond an end are likelier than allowed: one fewer are.
    if outside < 1:
        raise ValueError(f"{size} values have no interval at 95 %; six have")
    return ordered[outside - 1], ordered[size - outside]


def ratio_interval(
    ones: Sequence[float], others: Sequence[float]
) -> tuple[float, float]:
    """Ends of the interval of *ones* over *others*, each timed in the same rounds.

    Student's t on the logarithms of the rounds' ratios; two rounds or more.

    >>> low, high = ratio_interval([1.0, 1.2, 1.1], [1.0, 1.0, 1.0])
    >>> low < 1 < high
    True
    """
    logs = [log(one / other) for one, other in zip(ones, others, strict=True)]
    half = t.ppf((1 + CONFIDENCE) / 2, len(logs) - 1) * stdev(logs) / len(logs) ** 0.5
    return exp(fmean(logs) - half), exp(fmean(logs) + half)
