"""`Machine`: everything a price depends on that is not the model or the layout."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from costmodel.collectives import LinkRates, collective_s, link_rates, send_s
from costmodel.rates import Rates, rates_of
from costmodel.software import DEFAULT, Software, software
from profiles.cluster import Cluster, Island
from profiles.device import Device

Array = NDArray[Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """A cluster with its fitted rates, and the software that runs on it."""

    cluster: Cluster
    rates: Rates
    links: LinkRates
    software: Software

    @property
    def island(self) -> Island:
        return self.cluster.island

    @property
    def device(self) -> Device:
        return self.cluster.device

    def collective_s(
        self, kind: str, size_bytes: Array, *, ranks: Array, near: Array
    ) -> Array:
        """Seconds of a collective over groups with *near* members in a fast domain."""
        return collective_s(
            kind,
            size_bytes,
            ranks=ranks,
            ranks_per_node=near,
            rates=self.links,
        )

    def send_s(self, size_bytes: Array, *, far: Array) -> Array:
        """Seconds of a point-to-point transfer, between fast domains where *far*."""
        return send_s(size_bytes, same_node=~np.asarray(far), rates=self.links)


def machine(
    cluster: Cluster,
    framework: Software | None = None,
) -> Machine:
    """The machine that *cluster* is under *framework* (default: this project)."""
    return Machine(
        cluster=cluster,
        rates=rates_of(cluster.device),
        links=link_rates(cluster.island),
        software=framework or software(DEFAULT),
    )
