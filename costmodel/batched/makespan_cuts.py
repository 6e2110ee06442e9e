"""What 1F1B cannot beat however its layers are cut into stages.

A cut is known by its slowest stage alone, which takes s seconds a micro-batch there and
back; a trip of one micro-batch through all p stages and back takes w, whatever the cut.
Of m micro-batches, with e the slowest stage and k = p − 1 − e stages behind it that
take c with the sends (`makespan` has the paths):

    m s                         stage e is busy
    w + (m − 1) s − k f         along stage e, which k forwards f have filled before
    w + (m − 1) s − (k s − c)   the same, its last micro-batch down and back again
    w ⌊(m − 1) / p⌋ + …         windows between the first stage and the last

What the stages behind e fall short of s, k s − c, is no more than all do, p s − w.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from profiles.arrays import Array


def any_cut_s(
    *,
    trip_s: ArrayLike,
    slowest_s: ArrayLike,
    forward_share: ArrayLike,
    pp: ArrayLike,
    micro_batches: ArrayLike,
    short_before_s: ArrayLike = 0.0,
) -> Array:
    """At least the seconds of all passes of 1F1B whose slowest stage takes *slowest_s*.

    *forward_share* is the most of any stage's pass that is forward, *short_before_s*
    what the stages before the slowest fall short of it, at the least. Grows with
    *slowest_s*. Broadcasts.

    >>> equal = dict(trip_s=12.0, slowest_s=3.0, forward_share=1 / 3, pp=4)
    >>> float(any_cut_s(**equal, micro_batches=8))
    33.0
    """
    trip, s, p = np.asarray(trip_s), np.asarray(slowest_s), np.asarray(pp)
    after_first = np.asarray(micro_batches) - 1
    busy = (after_first + 1) * s
    filled = np.minimum(p - 1, after_first) * np.asarray(forward_share) * s
    along = trip + after_first * s - filled
    times, left = np.divmod(after_first, p)
    short = np.maximum(p * s - trip - np.asarray(short_before_s), 0.0)
    windows = trip + np.maximum(times * trip + left * s, after_first * s - short)
    paths = [busy, along, np.where(times > 0, windows, trip)]
    return np.asarray(np.maximum.reduce(paths))
