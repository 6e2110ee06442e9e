"""A linear model of logarithms under a normal prior, some of whose rows may be absurd.

    r = J x + ε      x ~ N(0, C), ε ~ Student-t of scale σ                → updated

Rows that miss by much weigh less (Student's t of few degrees of freedom, by iterated
weights). One that neither the prior nor the other rows allow is dropped, the worst
first. What rows scatter is learnt with them (an inverse-gamma prior around σ), so rows
that contradict each other leave a wider posterior. What a few rows share by chance (a
node, a day, a layout) does not average out among them: n rows count as if each
scattered by σ √(1 + 2/n).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
FREEDOM = 4.0  # of Student's t, and how many rows the prior of the scatter counts for
ABSURD = 4.0  # standard deviations from what all else says
NORMAL = 1.196  # p90 of a t of four degrees of freedom over that of a normal law
ROUNDS = 12
FEW = 2.0  # [fitted] with 0 one row made every third published family worse by a tenth
LEAST = 0.5  # of the noise before: a few rows that agree do not say that all will


@dataclass(frozen=True, slots=True, kw_only=True)
class Posterior:
    """The mean and covariance of x, the weight of each row (0: dropped), and what a row
    scatters."""

    mean: Floats
    covariance: Floats
    weights: Floats
    noise: float


def updated(
    covariance: Floats, slopes: Floats, misses: Floats, noise: float
) -> Posterior:
    """The posterior of x of prior *covariance*, where rows of *slopes* miss by *misses*
    and scatter by about *noise*."""
    inverse = _inverse(covariance)
    used = np.ones(len(misses), dtype=bool)
    strange = _deviations(covariance, slopes, misses, noise) > ABSURD
    while True:
        apart = _left_out(inverse, slopes, misses, noise, used)
        wrong = used & strange & (apart > ABSURD)
        if not wrong.any():
            return _solved(inverse, slopes, misses, noise, used)
        used[np.argmax(np.where(wrong, apart, 0.0))] = False


def _inverse(matrix: Floats) -> Floats:
    return np.asarray(np.linalg.inv(matrix), dtype=np.float64)


def _deviations(
    covariance: Floats, slopes: Floats, misses: Floats, noise: float
) -> Floats:
    """How many standard deviations off each row is, before any is seen."""
    known = np.einsum("ij,jk,ik->i", slopes, covariance, slopes)
    return np.asarray(np.abs(misses) / np.sqrt(known + noise**2))


def _left_out(
    inverse: Floats,
    slopes: Floats,
    misses: Floats,
    noise: float,
    used: NDArray[np.bool_],
) -> Floats:
    """How many standard deviations off each row is from what the others say."""
    scaled = slopes.T * (used / noise**2)
    covariance = _inverse(inverse + scaled @ slopes)
    own = np.einsum("ij,jk,ik->i", slopes, covariance, slopes)
    rest = 1 - np.minimum(used * own / noise**2, 1 - 1e-9)
    left = np.abs(misses - slopes @ (covariance @ (scaled @ misses))) / rest
    return np.asarray(left / np.sqrt(noise**2 + own / rest))


def _solved(
    inverse: Floats,
    slopes: Floats,
    misses: Floats,
    noise: float,
    used: NDArray[np.bool_],
) -> Posterior:
    first = scale = noise / NORMAL
    together = 1 + FEW / max(used.sum(), 1)
    weights = used.astype(float)
    mean = np.zeros(len(inverse))
    covariance = _inverse(inverse)
    for _ in range(ROUNDS):
        scaled = slopes.T * (weights / (together * scale**2 * NORMAL**2))
        covariance = _inverse(inverse + scaled @ slopes)
        mean = covariance @ (scaled @ misses)
        left = misses - slopes @ mean
        fitted = float(np.trace(covariance @ scaled @ slopes))  # parameters, in effect
        weights = used * np.minimum((FREEDOM + 1) / (FREEDOM + (left / scale) ** 2), 1)
        count = FREEDOM + max(weights.sum() - fitted, 0.0)
        scale = np.sqrt((FREEDOM * first**2 + float(weights @ left**2)) / count)
        scale = max(float(scale), LEAST * first)
    return Posterior(
        mean=mean, covariance=covariance, weights=weights, noise=scale * NORMAL
    )
