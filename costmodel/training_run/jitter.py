"""Stragglers: a step takes as long as its slowest rank.

Each of n ranks takes 1 + σZ of its own work, Z normal and drawn anew each step: the
slowest of them takes 1 + σ max(Z₁ … Zₙ), whose distribution is Φ(x)^n.
"""

from __future__ import annotations

from statistics import NormalDist
from typing import Any, Final

import numpy as np

from costmodel.simulation import Answer

NORMAL: Final = NormalDist()
WIDEST: Final = 12.0  # standard deviations
POINTS: Final = 4001


def expected_maximum(ranks: int) -> float:
    """E max(Z₁ … Zₙ) = ∫₀^∞ 1 − Φ(x)^n − Φ(−x)^n dx.

    >>> round(expected_maximum(2), 4)  # 1/√π
    0.5642
    """
    xs = np.linspace(0, WIDEST, POINTS)
    above = np.array([NORMAL.cdf(-x) for x in xs])
    inside = -np.expm1(ranks * np.log1p(-above)) - above**ranks
    return float((inside[1:] + inside[:-1]).sum() * WIDEST / (POINTS - 1) / 2)


def maximum_quantile(ranks: int, share: float) -> float:
    """The x that the greatest of *ranks* stays below with a probability of *share*."""
    above = -np.expm1(np.log(share) / ranks)  # 1 − share^(1/n)
    return -NORMAL.inv_cdf(float(above))


def jitter(found: Answer, sigma: float) -> dict[str, Any]:
    """What *sigma* adds to a step: its mean, p50 and p99."""
    ranks, parts = found.layout.gpus, found.breakdown_s
    own_s = sigma * (parts["compute"] + parts["recompute"] + parts["optimizer"])
    return {
        "sigma": sigma,
        "ranks": ranks,
        "added": own_s * expected_maximum(ranks) / found.step_time_s,
        "step_time_s": {
            "mean": found.step_time_s + own_s * expected_maximum(ranks),
            "p50": found.step_time_s + own_s * maximum_quantile(ranks, 0.5),
            "p99": found.step_time_s + own_s * maximum_quantile(ranks, 0.99),
        },
    }
