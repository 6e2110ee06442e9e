"""Gradient reduction behind the last backward, bucket by bucket.

The c seconds of a stage's reduction are K equal buckets, which the last backward
makes ready at equal intervals from its start t0 to its end t1; a bucket starts when
it is ready and the one before is done:

    end(k) = max(t0 + k·(t1 − t0)/K, end(k − 1)) + c/K,   k = 1 … K

Unrolled, what decides is the last bucket, or the first and all behind it, since what
is linear in k is largest at an end; or a link that was busy until r, and then c:

    end(K) = max(t1 + c/K,  t0 + (t1 − t0)/K + c,  r + c)
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray


def reduce_tail_s(
    reduce_s: ArrayLike,
    backward_s: ArrayLike,
    *,
    buckets: ArrayLike,
    overlap: ArrayLike,
) -> NDArray[Any]:
    """Seconds from the end of the last backward until its gradients are reduced.

    The first two terms of end(K) − t1 above; all of c where nothing is to *overlap*.
    Broadcasts.

    >>> float(reduce_tail_s(2.0, 4.0, buckets=4, overlap=True))
    0.5
    """
    whole_s = np.asarray(reduce_s)
    if not np.any(overlap):
        return whole_s
    bucket_s = whole_s / buckets
    hidden_s = np.asarray(backward_s) * (1 - 1 / np.asarray(buckets))
    behind_s = np.maximum(bucket_s, whole_s - hidden_s)
    return np.where(overlap, behind_s, whole_s)
