"""The cluster that a row names: a catalogue name, or a device and its link speeds.

Cells that are given override the catalogue's: the device, the GPUs of a node (the
fast domain), the bandwidth inside it (one way, per GPU) and out of it (all NICs of a
node together).

Unlike devices in one run: `mixed: 3x p3.8xlarge (…) + 1x g4dn.12xlarge (…)`.

So many nodes of each of these clusters of the catalogue; ranks go to them in the order
in which they are written. They meet over the slower of their networks.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Final

from costmodel.runs.cells import Cells
from costmodel.stages import placed
from profiles.errors import InvalidSpec, UnknownName
from profiles.hardware import Cluster, Device, Figure, Island, Level, cluster, device

MIXED: Final = "mixed"
_PART: Final = re.compile(r"\s*(\d{1,6})\s*x\s+([\w.-]+)\s*(?:\([^()]*\)\s*)?")


def is_mixed(name: str | None) -> bool:
    """Whether a device cell names unlike devices."""
    return name is not None and name.lower().startswith(MIXED)


def mixed_cluster(cells: Cells, gpus: int, inter: Figure | None) -> Cluster:
    """The cluster that the device cell describes; *inter* is a given network.

    Raises InvalidSpec where it does not say how many nodes of what, and UnknownName.
    """
    said = cells.text["device"]
    _, _, listed = said.partition(":")
    parts = [_PART.fullmatch(part) for part in listed.split("+")]
    if any(part is None for part in parts):
        raise InvalidSpec(
            f"device={said[:60]!r} does not say how many nodes of which clusters; "
            "write mixed: 3x CLUSTER + 1x CLUSTER, by catalogue names"
        )
    islands = []
    for part in parts:
        assert part is not None
        island = cluster(part[2]).island
        *inner, outer = island.levels
        if inter is not None:
            outer = replace(outer, bandwidth=inter)
        levels = (*inner, outer)
        islands.append(replace(island, nodes=int(part[1]), levels=levels))
    between = min(
        (island.levels[-1] for island in islands), key=lambda level: level.bytes_per_s
    )
    found = Cluster(
        name=listed.strip(),
        islands=tuple(islands),
        between=between,
        source="the table of runs",
    )
    if len(islands) > 1:
        cells.assumed["placement"] = placed(found, gpus)
    return found


GPUS_PER_NODE: Final = 8  # HGX and DGX boards since the P100
SOURCE: Final = "the table of runs"
_HOP: Final = Figure(value=0.0, unit="us", source="not given; rates hold the latency")
_SLOWEST_NVLINK: Final = 80.0  # GB/s one way: the P100's NVLink 1.0
_PAIR: Final = 2
TORUS: Final = "ici"


def cluster_of(cells: Cells, gpus: int) -> Cluster:
    """The cluster of a row that runs on *gpus* devices.

    Raises InvalidSpec naming the missing cell, UnknownName for a device or cluster.
    """
    name = cells.word("cluster")
    if is_mixed(cells.word("device")):
        per_node = cells.whole("gpus_per_node") or GPUS_PER_NODE
        inter = _figure(cells, "inter_node_gbit_per_s", "Gbit/s", per_node)
        return mixed_cluster(cells, gpus, inter)
    on = _device(cells.word("device"))
    base = _catalogued(name, needed=on is None)
    if base is None and name is None and on is not None:
        base = _own(cells, on)
    if base is None:
        if on is None:
            raise cells.missing(
                "cluster", "name a cluster of the catalogue, or a device and its links"
            )
        return _built(cells, name or on.name, on, gpus)
    return _overridden(cells, base, on)


def _device(name: str | None) -> Device | None:
    if name is None or name.lower() == "unknown":
        return None
    return device(name)


def _catalogued(name: str | None, *, needed: bool) -> Cluster | None:
    if name is None:
        return None
    try:
        return cluster(name)
    except UnknownName:
        if needed:
            raise
        return None


def _own(cells: Cells, on: Device) -> Cluster | None:
    """The cluster that a device always comes in (TPUs): it has the device's name."""
    found = _catalogued(on.name, needed=False)
    if found is not None:
        cells.assumed["cluster"] = found.name
    return found


def _overridden(cells: Cells, base: Cluster, on: Device | None) -> Cluster:
    island = base.island
    per_node = cells.whole("gpus_per_node") or island.domain
    intra = _figure(cells, "intra_node_gb_per_s", "GB/s", 1)
    inter = _figure(cells, "inter_node_gbit_per_s", "Gbit/s", per_node)
    levels = island.levels
    if levels[0].kind == TORUS:  # wider than a node: chips are linked, not hosts
        island = replace(island, devices_per_node=per_node)
    elif per_node != island.domain and len(levels) == _PAIR:
        levels = (replace(levels[0], devices=per_node), levels[1])
        island = replace(island, devices_per_node=per_node, levels=levels)
    if on is not None and on != island.device:
        island = replace(island, device=on)
    return replace(base, islands=(island,)).with_bandwidth(intra=intra, inter=inter)


def _built(cells: Cells, name: str, on: Device, gpus: int) -> Cluster:
    per_node = cells.given("gpus_per_node", cells.whole("gpus_per_node"), GPUS_PER_NODE)
    intra = _figure(cells, "intra_node_gb_per_s", "GB/s", 1)
    inter = _figure(cells, "inter_node_gbit_per_s", "Gbit/s", per_node)
    if intra is None and min(gpus, per_node) > 1:
        raise cells.missing(
            "intra_node_gb_per_s", f"the catalogue has no cluster {name!r} to ask"
        )
    if inter is None and gpus > per_node:
        raise cells.missing(
            "inter_node_gbit_per_s", f"the catalogue has no cluster {name!r} to ask"
        )
    host = on.host_link
    inner = Level(
        name="node",
        kind=_fabric(on, intra or host),
        devices=per_node,
        bandwidth=intra or host,
        latency=_HOP,
    )
    outer = Level(
        name="network",
        kind="infiniband",
        devices=None,
        bandwidth=inter or host,
        latency=_HOP,
    )
    island = Island(
        device=on, devices_per_node=per_node, nodes=None, levels=(inner, outer)
    )
    return Cluster(name=name, islands=(island,), source=SOURCE)


def _fabric(on: Device, intra: Figure) -> str:
    """What joins the devices of a node, as far as its speed tells."""
    if intra.value < _SLOWEST_NVLINK:
        return "pcie"
    return "xgmi" if on.architecture.lower().startswith("cdna") else "nvswitch"


def _figure(cells: Cells, column: str, unit: str, shared_by: int) -> Figure | None:
    """A given bandwidth, shared by so many devices; None where the cell is empty."""
    found = cells.number(column)
    if found is None:
        return None
    if not found:
        raise cells.wrong(column, "more than 0")
    return Figure(value=found / shared_by, unit=unit, source=SOURCE)
