"""Random numbers that are a pure function of a seed and an index.

Philox is counter-based (Salmon et al., SC 2011): a stream begins at any counter at
once, and NumPy keeps its raw numbers the same from version to version.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Words = NDArray[np.uint64]


def words(seed: int, index: int, count: int) -> Words:
    """*count* random 64-bit words of stream *index*.

    >>> words(7, 3, 4)[:2].tolist() == words(7, 3, 2).tolist()
    True
    """
    # The counter runs in the lowest of its four words; the highest names the stream.
    return np.random.Philox(key=seed, counter=[0, 0, 0, index]).random_raw(count)


def uniforms(raw: Words) -> NDArray[np.float64]:
    """The upper 53 bits of each word as a number in [0, 1)."""
    return (raw >> np.uint64(11)).astype(np.float64) * 2.0**-53
