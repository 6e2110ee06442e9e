"""`LaunchFloor`: what a device computes takes no less than a host needs to issue it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchFloor:
    """The softer maximum of device and host: a power mean, as some kernels of a layer
    are bound by the host and others not. An exponent of 1 would be their sum, infinity
    their maximum.

    `alone` is the exponent of ranks that wait for nobody in a pass, `together` where
    collectives make them wait for each other: now the device is late and now the host
    of another rank, so that more of both adds up. Both are [assumed], and fitted where
    runs tell (`costmodel.in_training`).
    """

    alone: float = 4.0
    together: float = 4.0

    def seconds(self, device_s: Array, host_s: Array, awaited_s: Array) -> Array:
        """Seconds of passes of *device_s* that take *host_s* to issue, of which
        *awaited_s* are of hosts that other ranks wait for."""
        share = np.divide(
            awaited_s, host_s, out=np.zeros_like(host_s), where=host_s > 0
        )
        if not np.any(share):
            return _power_mean(device_s, host_s, self.alone)
        waiting_s = _power_mean(device_s, host_s, self.together)
        if np.all(share == 1.0):
            return waiting_s
        alone_s = _power_mean(device_s, host_s, self.alone)
        return np.asarray((1 - share) * alone_s + share * waiting_s)


def _power_mean(device_s: Array, host_s: Array, exponent: float) -> Array:
    total = device_s**exponent + host_s**exponent
    return np.asarray(total ** (1 / exponent))


ASSUMED = LaunchFloor()
ADDED = LaunchFloor(alone=1.0, together=1.0)  # a host that waits for every kernel
