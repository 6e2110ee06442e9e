"""`nvidia-smi topo -m`: a matrix of GPUs and NICs and what joins them.

NV12            12 NVLinks, straight or through switches
PIX PXB PHB     PCIe, through more and more of it
NODE SYS        through one processor, through both
"""

from __future__ import annotations

import re
from typing import Final

from profiles.errors import InvalidFile
from profiles.importers.node import NodeTopology

_ESCAPES: Final = re.compile(r"\x1b\[[0-9;]*m")
_GPU: Final = re.compile(r"GPU(\d+)")
_NIC: Final = re.compile(r"(NIC\d+|mlx\d+_\d+\S*|efa\w*|rdmap\w*|bnxt\w*|irdma\w*)")
_LINK: Final = re.compile(r"NV(\d{1,3})|PIX|PXB|PHB|NODE|SYS")


def is_topology_matrix(text: str) -> bool:
    """Whether *text* looks like the output of `nvidia-smi topo -m`."""
    return bool(_header(_ESCAPES.sub("", text).splitlines()))


def read_topology_matrix(text: str, source: str) -> NodeTopology:
    """The node that `nvidia-smi topo -m` printed as *text*.

    Raises InvalidFile, naming *source*, for a row or cell that is missing or unknown.
    """
    lines = _ESCAPES.sub("", text).splitlines()
    columns = _header(lines)
    gpus = [name for name in columns if _GPU.fullmatch(name)]
    filled = [
        cells for line in lines if (cells := line.split()) and cells[0] in columns
    ]
    rows = {cells[0]: cells[1:] for cells in filled if cells[1:2] != [columns[1]]}
    links = {}
    for place, gpu in enumerate(gpus):
        for other in range(place + 1, len(gpus)):
            count = _count(rows, gpu, gpus[other], columns, source)
            if count != _count(rows, gpus[other], gpu, columns, source):
                raise InvalidFile(
                    f"{source}: {gpu} and {gpus[other]} do not say the same of each "
                    "other; run `nvidia-smi topo -m` again"
                )
            if count:
                links[place, other] = count
    nics = [name for name in columns if _NIC.fullmatch(name)]
    return NodeTopology(
        gpus=len(gpus), source=source, links=links, nics=(None,) * len(nics)
    )


def _header(lines: list[str]) -> list[str]:
    """The names of the matrix's columns, GPUs first; [] where there is no matrix."""
    for line in lines:
        cells = line.split()
        if cells[:2] == ["GPU0", "GPU1"]:
            return [one for one in cells if _GPU.fullmatch(one) or _NIC.fullmatch(one)]
    return []


def _count(
    rows: dict[str, list[str]], one: str, other: str, columns: list[str], source: str
) -> int:
    """NVLinks between two GPUs, as the row of *one* has them."""
    if one not in rows:
        raise InvalidFile(f"{source}: there is no row for {one}; copy all of the table")
    place = columns.index(other)
    cells = rows[one]
    cell = cells[place] if place < len(cells) else ""
    match = _LINK.fullmatch(cell)
    if match is None:
        raise InvalidFile(
            f"{source}: between {one} and {other} stands {cell or 'nothing'!r}, and "
            "not NV<links>, PIX, PXB, PHB, NODE or SYS: a link is missing"
        )
    return int(match[1] or 0)
