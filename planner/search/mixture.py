"""`least_mixture`: of ways that cost more the less they need, two that fit together.

Layers of a stage may each go another of a few ways (presets of recomputation): what a
stage takes and needs then lies between those of the ways, and the least that fits is a
mixture of two, of which one fits alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from profiles.arrays import Array


@dataclass(frozen=True, slots=True)
class Mixture:
    """At each place a share of way *other*, the rest of way *one*; whether any fits."""

    one: Array
    other: Array
    share: Array
    fits: Array

    def of(self, ways: Sequence[Array] | Array) -> Array:
        """The mixture of what each of the *ways* has; infinite where none fits."""
        every, place = np.stack(list(ways)), np.arange(len(self.share))
        found = every[self.one, place] * (1 - self.share)
        found = found + every[self.other, place] * self.share
        return np.where(self.fits, found, np.inf)


def least_mixture(
    costs: Sequence[Array] | Array, needed: Sequence[Array] | Array, limit: float
) -> Mixture:
    """The mixture at each place that costs least of those that need at most *limit*.

    >>> keep, redo = np.array([1.0, 1.0]), np.array([3.0, 3.0])
    >>> found = least_mixture([keep, redo], [np.array([8.0, 4.0]), redo - 1], 5)
    >>> found.of([keep, redo]).tolist()
    [2.0, 1.0]
    """
    size = len(costs[0])
    least = np.full(size, np.inf)
    one, other = np.zeros(size, dtype=int), np.zeros(size, dtype=int)
    share = np.zeros(size)
    for first, more in enumerate(needed):
        for second, less in enumerate(needed):
            alone = first == second
            can = less <= limit if alone else (more > limit) & (less <= limit)
            part = (more - limit) / np.where(can & (more > less), more - less, 1.0)
            part = np.zeros(size) if alone else np.clip(part, 0.0, 1.0)
            cost = (1 - part) * costs[first] + part * costs[second]
            wins = can & (cost < least)
            least = np.where(wins, cost, least)
            share = np.where(wins, part, share)
            one, other = np.where(wins, first, one), np.where(wins, second, other)
    return Mixture(one, other, share, least < np.inf)
