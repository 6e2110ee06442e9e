"""Unlike devices in one run: `mixed: 3x p3.8xlarge (…) + 1x g4dn.12xlarge (…)`.

So many nodes of each of these clusters of the catalogue; ranks go to them in the order
in which they are written. They meet over the slower of their networks.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Final

from costmodel.islands import placed
from costmodel.runs.cells import Cells
from profiles.catalog import cluster
from profiles.cluster import Cluster
from profiles.errors import InvalidSpec
from profiles.figure import Figure

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
