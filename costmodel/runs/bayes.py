"""A linear model of logarithms under a normal prior, some of whose rows may be absurd.

    r = J x + ε      x ~ N(0, C), ε ~ Student-t of scale σ                → updated

Rows that miss by much weigh less (Student's t of few degrees of freedom, by iterated
weights). One that neither the prior nor the other rows allow is dropped, the worst
first. What rows scatter is learnt with them (an inverse-gamma prior around σ), so rows
that contradict each other leave a wider posterior.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
FREEDOM = 4.0  # of Student's t, and how many rows the prior of the scatter counts for
ABSURD = 4.0  # standard deviations from what all else says
ROUNDS = 12


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
    inverse: Floats = np.linalg.inv(covariance)
    used = np.ones(len(misses), dtype=bool)
    strange = _deviations(covariance, slopes, misses, noise) > ABSURD
    while True:
        found = _solved(inverse, slopes, misses, noise, used)
        apart = _left_out(found, slopes, misses, noise)
        wrong = used & strange & (apart > ABSURD)
        if not wrong.any():
            return found
        used[np.argmax(np.where(wrong, apart, 0.0))] = False


def _deviations(
    covariance: Floats, slopes: Floats, misses: Floats, noise: float
) -> Floats:
    """How many standard deviations off each row is, before any is seen."""
    known = np.einsum("ij,jk,ik->i", slopes, covariance, slopes)
    return np.asarray(np.abs(misses) / np.sqrt(known + noise**2))


def _solved(
    inverse: Floats,
    slopes: Floats,
    misses: Floats,
    noise: float,
    used: NDArray[np.bool_],
) -> Posterior:
    weights, scale = used.astype(float), noise
    mean = np.zeros(len(inverse))
    covariance: Floats = np.linalg.inv(inverse)
    for _ in range(ROUNDS):
        scaled = slopes.T * (weights / scale**2)
        covariance = np.linalg.inv(inverse + scaled @ slopes)
        mean = covariance @ (scaled @ misses)
        left = misses - slopes @ mean
        weights = used * np.minimum(
            (FREEDOM + 1) / (FREEDOM + (left / scale) ** 2), 1.0
        )
        spent = float(weights @ left**2)
        scale = np.sqrt((FREEDOM * noise**2 + spent) / (FREEDOM + weights.sum()))
        scale = max(scale, LEAST * noise)
    return Posterior(
        mean=mean, covariance=covariance, weights=weights, noise=float(scale)
    )


LEAST = 0.5  # of the noise before: a few rows that agree do not say that all will


def _left_out(found: Posterior, slopes: Floats, misses: Floats, noise: float) -> Floats:
    """How many standard deviations off each row is from what the others say."""
    own = np.einsum("ij,jk,ik->i", slopes, found.covariance, slopes)
    share = np.minimum(found.weights * own / found.noise**2, 1 - 1e-9)
    left = np.abs(misses - slopes @ found.mean) / (1 - share)
    return np.asarray(left / np.sqrt(noise**2 + own / (1 - share)))
