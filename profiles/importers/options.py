"""`ImportOptions`: which files of other tools are read; imports nothing heavy."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from profiles.commandline import (
    FilePath,
    FloatRange,
    collected,
    complete_clusters,
    complete_devices,
    option,
    text,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportOptions:
    """As the command line says it; None (or empty) where it does not."""

    files: tuple[Path, ...] = option(
        default=(),
        flag="--import",
        type=FilePath(),
        metavar="FILE",
        multiple=True,
        help="Instead of measuring, read the output of `nvidia-smi topo -m`, NCCL's "
        "topology (NCCL_TOPO_DUMP_FILE) or a log of nccl-tests; may be given several "
        "times. The cluster goes to --cluster, logs go to --out.",
    )
    gpu: str | None = option(
        type=text,
        shell_complete=complete_devices,
        metavar="NAME",
        help="The GPU of the imported nodes.  [default: as the files say]",
    )
    nic_gbit_per_s: float | None = option(
        type=FloatRange(0, 1e5, strictly=True),
        metavar="N",
        help="Rate of each NIC.  [default: as the files say]",
    )
    links_of: str | None = option(
        type=text,
        shell_complete=complete_clusters,
        metavar="NAME|FILE",
        help="The cluster whose links the logs measured, where no file describes it.",
    )


import_options = collected("Import", ImportOptions, "imports")
