"""`Curve`: measured seconds over work, made monotone, read between its points."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from profiles.errors import InvalidSpec

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """Seconds over work (bytes, rows, FLOPs): work rises, seconds never fall."""

    work: tuple[float, ...]
    seconds: tuple[float, ...]

    def at(self, work: ArrayLike) -> Floats:
        """Seconds at *work*: between two samples, a power law through both.

        Below the first sample its seconds are kept (fixed costs); above the last one
        its rate is.

        >>> curve = Curve(work=(1.0, 4.0), seconds=(1.0, 2.0))
        >>> [round(float(value), 3) for value in curve.at([0.5, 2.0, 8.0])]
        [1.0, 1.414, 4.0]
        """
        asked = np.asarray(work, dtype=np.float64)
        inside = np.exp(
            np.interp(
                np.log(np.maximum(asked, self.work[0])),
                np.log(self.work),
                np.log(self.seconds),
            )
        )
        # exp(log(x)) may miss a sample by a rounding; it may not leave its range.
        inside = np.clip(inside, self.seconds[0], self.seconds[-1])
        return inside * np.maximum(asked / self.work[-1], 1.0)


def made_monotone(
    work: Sequence[float],
    seconds: Sequence[float],
    weights: Sequence[float] | None = None,
) -> Curve:
    """The nondecreasing curve closest to *seconds* in the logarithm.

    Samples of equal work are averaged first. Then pool adjacent violators: whenever
    more work took less time, both become their (weighted, geometric) mean [1]_.

    Raises InvalidSpec where there is no sample, or one is not positive and finite.

    >>> made_monotone([1, 2, 3], [1.0, 4.0, 1.0]).seconds
    (1.0, 2.0, 2.0)

    .. [1] Barlow, Bartholomew, Bremner and Brunk 1972, section 1.2.
    """
    pairs = np.array([work, seconds, weights or [1.0] * len(work)], dtype=np.float64)
    if not pairs.size or not np.isfinite(pairs).all() or (pairs <= 0).any():
        raise InvalidSpec(
            f"a curve needs work, seconds and weights that are positive and finite; "
            f"got work {list(work)} and seconds {list(seconds)}"
        )
    distinct, where = np.unique(pairs[0], return_inverse=True)
    weight: Floats = np.bincount(where, pairs[2]).astype(np.float64)
    total: Floats = np.bincount(where, pairs[2] * np.log(pairs[1])).astype(np.float64)
    pooled = np.exp(_pooled(total / weight, weight))
    return Curve(work=tuple(distinct.tolist()), seconds=tuple(pooled.tolist()))


def _pooled(level: Floats, weight: Floats) -> Floats:
    blocks: list[tuple[float, float, int]] = []  # mean, weight, points
    for mean, mass in zip(level.tolist(), weight.tolist(), strict=True):
        points = 1
        while blocks and blocks[-1][0] > mean:
            earlier, earlier_mass, earlier_points = blocks.pop()
            mean = (earlier * earlier_mass + mean * mass) / (earlier_mass + mass)
            mass, points = mass + earlier_mass, points + earlier_points
        blocks.append((mean, mass, points))
    return np.repeat([mean for mean, _, _ in blocks], [points for *_, points in blocks])
