"""Networks that could join the nodes of a layout: switches, cost, power, and the step.

    full-bisection   any NIC reaches any other at its own rate, through a Clos network
    rail-optimised   the same switches; NIC i of every domain is plugged into the same
                     leaves, so that what stays on its rail crosses no core
    oversubscribed   the same leaves, and a core of an R-th of their bandwidth, which
                     all that leaves a domain is priced at
    unlike NICs      half of the nodes on InfiniBand, half on RoCE, each half with a
                     network of full bisection, and Ethernet between (Yang et al.,
                     "Holmes", ICPP 2024): ranks fill one half, then the other
    rail-only        a network for each NIC of a domain; none joins them (Wang et al.,
                     "Rail-only", HOTI 2024, arXiv 2307.12169, sections 3 and 4)

Switches of radix k that join E endpoints: 1 up to k of them, 3 E/k in two tiers up to
k²/2, 5 E/k in three up to k³/4; and E links a tier.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import ceil
from typing import TYPE_CHECKING, Any, Final

from costmodel.machine import Machine, machine
from costmodel.simulation import Estimate, estimate
from profiles.errors import Contradiction, InvalidQuestion, InvalidSpec
from profiles.hardware import Cluster, Figure, Level
from profiles.units import format_seconds

if TYPE_CHECKING:
    from rich.table import Table

RADIX: Final = 64
OVERSUBSCRIBED: Final = (2, 4)  # a core of a half, of a quarter [assumed]
# [assumed: a port of 100 Gbit/s for each node between halves with unlike NICs]
ETHERNET_GBIT: Final = 100.0
ETHERNET_US: Final = 20.0
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

    def __add__(self, other: Fabric) -> Fabric:
        """Both, of one radix."""
        return replace(
            self,
            switches=self.switches + other.switches,
            links=self.links + other.links,
        )

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
    """A network, and the layout's price on it; None where it cannot run so, and why."""

    name: str
    fabric: Fabric
    step_time_s: float | None
    reason: str | None = None

    def document(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "switches": self.fabric.switches,
            "links": self.fabric.links,
            "dollars": self.fabric.dollars,
            "watts": self.fabric.watts,
            "step_time_s": self.step_time_s,
            "error": self.reason,
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
            f"--compare-networks: --gpus {gpus} are in one domain of "
            f"{island.domain}, which needs no network; give more --gpus"
        )
    rails = min(island.levels[-1].ports or island.domain, island.domain)
    nics = rails * ceil(gpus / island.domain)
    whole = clos(nics, radix)
    made = {
        "full-bisection": (whole, on.cluster),
        "rail-optimised": (whole, on.cluster),
    }
    for part in OVERSUBSCRIBED if nics > radix else ():  # one switch has no core
        where = _joined(on.cluster, part=part)
        made[f"oversubscribed {part}:1"] = (clos(nics, radix, part), where)
    if rails == island.domain:
        each = clos(nics // rails, radix)
        made["rail-only"] = (each * rails, _joined(on.cluster, rails=True))
    nodes = gpus // island.devices_per_node
    if nodes >= 2 and gpus % (2 * island.devices_per_node) == 0:
        halves = clos(ceil(nics / 2), radix) * 2 + clos(nodes, radix)
        made["unlike NICs"] = (halves, _unlike(on.cluster, nodes))
    return [
        _design(name, fabric, found, on, where)
        for name, (fabric, where) in made.items()
    ]


def _design(
    name: str, fabric: Fabric, found: Estimate, on: Machine, where: Cluster
) -> Design:
    try:
        step_s = _step_s(found, on, where)
    except InvalidQuestion as error:  # layouts that unlike halves do not run
        return Design(name=name, fabric=fabric, step_time_s=None, reason=str(error))
    return Design(name=name, fabric=fabric, step_time_s=step_s)


def _unlike(cluster: Cluster, nodes: int) -> Cluster:
    """Two halves of a cluster, on InfiniBand and on RoCE, with Ethernet between."""
    island = cluster.island
    *inner, outer = island.levels
    kinds = (replace(outer, name=one, kind=one) for one in ("infiniband", "roce"))
    halves = (
        replace(island, nodes=nodes // 2, levels=(*inner, kind)) for kind in kinds
    )
    rate = Figure(
        value=ETHERNET_GBIT / island.devices_per_node, unit="Gbit/s", source="assumed"
    )
    between = Level(
        name="ethernet",
        kind="ethernet",
        devices=None,
        bandwidth=rate,
        latency=Figure(value=ETHERNET_US, unit="us", source="assumed"),
    )
    return replace(cluster, islands=tuple(halves), between=between)


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


def network_table(compared: list[Design]) -> Table:
    """What `designs` found, each beside full bisection."""
    from rich.table import Table

    table = Table(box=None, padding=(0, 1), header_style="bold")
    table.add_column("network", no_wrap=True)
    for name in ("step", "longer", "switches", "links", "M USD", "kW", "saved"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("", overflow="fold")
    first = compared[0]
    for one in compared:
        step, longer, reason = "", "", one.reason or ""
        if one.step_time_s is not None and first.step_time_s is not None:
            step = format_seconds(one.step_time_s)
            longer = f"{one.step_time_s / first.step_time_s - 1:+.1%}"
        table.add_row(
            one.name,
            step,
            longer,
            f"{one.fabric.switches:,}",
            f"{one.fabric.links:,}",
            f"{one.fabric.dollars / 1e6:,.3g}",
            f"{one.fabric.watts / 1e3:,.3g}",
            f"{1 - one.fabric.dollars / first.fabric.dollars:.0%}",
            reason,
        )
    return table
