"""What a row keeps off the device: its `offload` cell, and the ratio told in words."""

from __future__ import annotations

import re
from typing import Final

from costmodel.offload import NOTHING, Offload, parse_offload
from costmodel.runs.cells import Cells

_RATIO: Final = re.compile(r"offload ratio ([0-9.]+)")  # Yuan et al. (ATC 2024)


def offload_of(cells: Cells) -> Offload:
    """optimizer, parameters, activations=RATIO, joined by + or commas; or none.

    Raises InvalidSpec for other words, and for activations of which no share is told.
    """
    said = cells.word("offload")
    if said is None:
        return NOTHING
    parts = said.lower().replace("+", ",").split(",")
    if "activations" in parts:
        told = _RATIO.search(cells.word("recompute_detail") or "")
        if told is None:
            raise cells.wrong("offload", "told with its share: activations=RATIO")
        parts[parts.index("activations")] = f"activations={told[1]}"
    found = parse_offload(",".join(parts))
    if found.anything:
        cells.assumed["offload_to"] = found.tier
    return found
