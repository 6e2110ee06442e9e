"""The lower convex hull of points: of many ways, those that are best at some price of
a byte in seconds."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


def lower_hull(seconds: Array, kept: Array) -> list[int]:
    """The corners, the fastest first; each holds less than the one before.

    >>> lower_hull(np.array([0, 1, 1, 3, 4]), np.array([9, 8, 4, 3, 0]))
    [0, 2, 4]
    """
    corners: list[int] = []
    least = np.inf
    for at in np.lexsort((kept, seconds)).tolist():
        if kept[at] >= least:
            continue
        least = kept[at]
        while len(corners) > 1 and _above(corners[-2], corners[-1], at, seconds, kept):
            corners.pop()
        corners.append(at)
    return corners


def _above(a: int, b: int, c: int, seconds: Array, kept: Array) -> bool:
    """Whether *b* is on or above the line from *a* to *c*."""
    first = (seconds[b] - seconds[a]) * (kept[a] - kept[c])
    second = (seconds[c] - seconds[a]) * (kept[a] - kept[b])
    return bool(first >= second)
