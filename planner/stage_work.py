"""What devices are busy with at the least, whatever the cuts between stages."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from planner.stage_layers import Option
from planner.stage_passes import Array, Passes
from planner.stage_places import Place


def through_s(passes: Sequence[Passes]) -> float:
    """Seconds of a micro-batch through all layers and back, each on the fastest."""
    return float(np.min([one.both_s for one in passes], axis=0).sum())


def busy_s(
    options: Sequence[Option], passes: Sequence[Passes], places: Sequence[Place]
) -> float:
    """Seconds in which all devices together do a micro-batch, spread as is best.

    The mean over devices of the least device-seconds, those of each place weighed by
    how fast it is: any weights bound, by duality.
    """
    works = {
        place: _work(options, passes, [one is place for one in places])
        for place in dict.fromkeys(places)
    }
    rate = sum(place.devices / float(work.sum()) for place, work in works.items())
    shares = [work / work.sum() for work in works.values()]
    return float(np.min(shares, axis=0).sum()) / rate


def _work(
    options: Sequence[Option], passes: Sequence[Passes], here: Sequence[bool]
) -> Array:
    """Device-seconds of each layer by the option *here* that needs least."""
    every = [
        each.both_s * option.devices
        for each, option, inside in zip(passes, options, here, strict=True)
        if inside
    ]
    return np.asarray(np.min(every, axis=0))
