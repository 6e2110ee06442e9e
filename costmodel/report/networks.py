"""Networks that could join the nodes of a layout: switches, cost, power, and the step.

    full-bisection   any NIC reaches any other at its own rate, through a Clos network
    oversubscribed   the same leaves, and a core of an R-th of their bandwidth, which
                     all that leaves a domain is priced at
    rail-only        a network for each NIC of a domain; none joins them (Wang et al.,
                     "Rail-only", HOTI 2024, arXiv 2307.12169, sections 3 and 4)

Switches of radix k that join E endpoints: 1 up to k of them, 3 E/k in two tiers up to
k²/2, 5 E/k in three up to k³/4; and E links a tier. A rail-optimised network has the
switches of full bisection: just how NICs are plugged in differs.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import ceil
from typing import Any, Final

from costmodel.machine import Machine, machine
from costmodel.simulation import Estimate, estimate
from profiles.errors import Contradiction, InvalidSpec
from profiles.hardware import Cluster
from profiles.units import format_seconds

RADIX: Final = 64
OVERSUBSCRIBED: Final = 4  # a core of a quarter [assumed]
# [assumed, from memory: 400 Gbit/s switches of 64 ports at 30,000 USD and 1,100 W, and
# optical transceivers at 700 USD and 9 W, two a link; for comparing, not for buying]
PORT_USD: Final = 30_000 / 64
PORT_W: Final = 1_100 / 64
TRANSCEIVER_USD: Final = 700.0
TRANSCEIVER_W: Final = 9.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Fabric:
    """Switches of one radix, and the links between them and to the endpoints."""

    radix: int
    switches: int = 0
    links: int = 0

    @property
    def dollars(self) -> float:
        return self._of(PORT_USD, TRANSCEIVER_USD)

    @property
    def watts(self) -> float:
        return self._of(PORT_W, TRANSCEIVER_W)

    def _of(self, port: float, transceiver: float) -> float:
        return self.switches * self.radix * port + 2 * self.links * transceiver

    def __mul__(self, count: int) -> Fabric:
        """So many networks apart from each other."""
        return replace(self, switches=self.switches * count, links=self.links * count)


def clos(endpoints: int, radix: int = RADIX, oversubscribed: int = 1) -> Fabric:
    """Joins *endpoints* at their rate, or at a part of it beyond the leaves.

    >>> clos(32_768).switches, clos(32_768, 128).switches, clos(128).switches
    (2560, 1280, 6)

    Raises InvalidSpec for more endpoints than three tiers join.
    """
    tiers = _tiers(endpoints, radix)
    if tiers == 1:
        return Fabric(radix=radix, switches=1, links=endpoints)
    down = radix * oversubscribed // (oversubscribed + 1)  # ports of a leaf
    upward = endpoints / oversubscribed  # links from one tier to the next
    leaves = endpoints / down
    core = (3 if tiers == 3 else 1) * upward / radix
    return Fabric(
        radix=radix,
        switches=ceil(leaves) + ceil(core),
        links=endpoints + ceil((tiers - 1) * upward),
    )


def _tiers(endpoints: int, radix: int) -> int:
    if endpoints <= radix:
        return 1
    if endpoints <= radix**2 / 2:
        return 2
    if endpoints <= radix**3 / 4:
        return 3
    raise InvalidSpec(
        f"{endpoints:,} NICs are more than three tiers of switches with {radix} ports "
        f"join ({radix**3 // 4:,}); give a larger --radix"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Design:
    """A network, and the layout's price on it."""

    name: str
    fabric: Fabric
    step_time_s: float

    def document(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "switches": self.fabric.switches,
            "links": self.fabric.links,
            "dollars": self.fabric.dollars,
            "watts": self.fabric.watts,
            "step_time_s": self.step_time_s,
        }


def designs(found: Estimate, on: Machine, radix: int = RADIX) -> list[Design]:
    """The networks that could join the GPUs of an estimate, each with its step.

    Raises Contradiction where they are all in one domain, Unsupported for islands.
    """
    if on.measured is not None:
        raise Contradiction(
            "--compare-networks prices networks that nobody measured; leave --profile "
            "out, or name a --cluster"
        )
    island, gpus = on.cluster.island, found.layout.gpus
    if gpus <= island.domain:
        raise Contradiction(
            f"--compare-networks: the {gpus} GPUs are in one domain of "
            f"{island.domain}, which needs no network; give more --gpus"
        )
    rails = min(island.levels[-1].ports or island.domain, island.domain)
    nics = rails * ceil(gpus / island.domain)
    made = {
        "full-bisection": (clos(nics, radix), _joined(on.cluster)),
        f"oversubscribed {OVERSUBSCRIBED}:1": (
            clos(nics, radix, OVERSUBSCRIBED),
            _joined(on.cluster, part=OVERSUBSCRIBED),
        ),
    }
    if rails == island.domain:
        each = clos(nics // rails, radix)
        made["rail-only"] = (each * rails, _joined(on.cluster, rails=True))
    return [
        Design(name=name, fabric=fabric, step_time_s=_step_s(found, on, where))
        for name, (fabric, where) in made.items()
    ]


def _joined(cluster: Cluster, *, part: int = 1, rails: bool = False) -> Cluster:
    """*cluster* with a *part* of its network's rate, or with *rails* alone."""
    island = cluster.island
    *inner, outer = island.levels
    rate = outer.bandwidth
    outer = replace(
        outer, rails=rails, bandwidth=replace(rate, value=rate.value / part)
    )
    levels = (*inner, outer)
    return replace(cluster, islands=(replace(island, levels=levels),))


def _step_s(found: Estimate, on: Machine, where: Cluster) -> float:
    if where == on.cluster:
        return found.step_time_s
    there = machine(where, on.plain, fitted=on.fitted).paced(on.pace)
    return estimate(found.job, where, found.layout, on=there).step_time_s


def network_rows(compared: list[Design]) -> Iterator[tuple[str, str]]:
    """What `designs` found, as names and what they say."""
    first = compared[0]
    for one in compared:
        saved = 1 - one.fabric.dollars / first.fabric.dollars
        slower = one.step_time_s / first.step_time_s - 1
        beside = "" if one is first else f" ({saved:.0%} less), {slower:+.1%} a step"
        words = (
            f"{format_seconds(one.step_time_s)} a step, {one.fabric.switches:,} "
            f"switches of {one.fabric.radix} ports, {one.fabric.links:,} links, "
            f"{one.fabric.dollars / 1e6:,.3g} M USD, "
            f"{one.fabric.watts / 1e3:,.3g} kW{beside}"
        )
        yield one.name, words
