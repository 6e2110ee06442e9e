"""The software that a row ran on: its framework, and the kernels the row names."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from costmodel.footprint import UNKNOWN
from costmodel.question import flash_default
from costmodel.runs.cells import Cells
from costmodel.software import DEFAULT, Software, software_of_run
from profiles.cluster import Cluster
from profiles.errors import Contradiction

# attention_kernel as runs call it → the kernel that is priced.
KERNELS: Final = {
    "naive": "materialised",
    "fused-softmax": "fused-softmax",
    "flash-1": "flash-1",
    "flash-2": "flash-2",
    "flash-3": "flash-3",
}


def software_of(cells: Cells) -> tuple[Software, tuple[str, ...]]:
    """The software with the row's kernels in place, and what to warn of.

    Raises UnknownName for a kernel, InvalidSpec for a flag that cannot be read.
    """
    printed = cells.word("framework")
    base = software_of_run(printed or DEFAULT)
    warnings: tuple[str, ...] = ()
    if printed is None:
        cells.assumed["framework"] = base.name
    elif base.name == DEFAULT and DEFAULT not in printed.lower():
        cells.assumed["framework"] = base.name
        base = replace(base, footprint=UNKNOWN)
        warnings = (f"framework {printed!r} is not known: priced as {base.name}",)
    kernel = cells.choice("attention_kernel", KERNELS)
    fused = cells.flag("fused_norm")
    if kernel is not None and kernel.startswith("flash"):
        base = replace(base, flash=KERNELS[kernel])
    elif kernel is not None:
        base = replace(base, unfused=KERNELS[kernel])
    if fused is None:
        cells.assumed["fused_norm"] = base.fused_norm
    else:
        base = replace(base, fused_norm=fused)
    return base, warnings


def flash_of(cells: Cells, where: Cluster, precision: str) -> bool:
    """Whether flash attention runs: by the kernel, the flag, or wherever it can, which
    is in 16 bits (Dao et al., the kernels' README).

    Raises Contradiction where kernel and flag exclude each other.
    """
    kernel = cells.choice("attention_kernel", KERNELS)
    flag = cells.flag("flash_attention")
    if kernel is None:
        can = precision not in ("fp32", "tf32")
        return cells.given(
            "flash_attention", flag, lambda: can and flash_default(where)
        )
    flash = kernel.startswith("flash")
    if flag is not None and flag != flash:
        raise Contradiction(
            f"attention_kernel={kernel} contradicts flash_attention="
            f"{cells.word('flash_attention')}; mend one of them"
        )
    return flash
