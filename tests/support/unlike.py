"""A cluster file that joins two unlike islands of the catalogue."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path

from profiles.hardware.catalog import cluster
from profiles.hardware.clusters import Cluster


def cluster_file(folder: Path, *names: str, nodes: int = 1) -> str:
    """So many nodes of each named cluster, over the first one's network."""
    islands = tuple(replace(cluster(name).island, nodes=nodes) for name in names)
    joined = Cluster(
        name="unlike",
        islands=islands,
        between=islands[0].levels[-1],
        source="a test",
    )
    path = folder / "unlike.json"
    path.write_text(json.dumps(asdict(joined)))
    return str(path)
