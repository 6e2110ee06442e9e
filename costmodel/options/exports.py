"""`ExportOptions`: which other frameworks' files a layout is written as, and where."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from profiles.commandline import FilePath, collected, option, text

TARGETS = (
    *("megatron", "megatron-deepspeed", "deepspeed", "torchtitan", "accelerate"),
    *("trainer", "nemo", "colossalai", "torchrun", "slurm", "kubernetes"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportOptions:
    """Empty and None where the command line does not say."""

    export: tuple[str, ...] = option(
        default=(),
        type=text,
        multiple=True,
        metavar="TARGET,…",
        help=f"Also write the layout as files of {', '.join(TARGETS)}; "
        "slurm:megatron starts another target's command. What a target cannot "
        "express is an error.",
    )
    export_to: Path | None = option(
        type=FilePath(),
        metavar="FOLDER",
        help="Where --export writes; of several targets each has a folder there.  "
        "[default: here]",
    )

    @property
    def targets(self) -> tuple[str, ...]:
        """Every target that was named, once."""
        parts = (part.strip() for one in self.export for part in one.split(","))
        return tuple(dict.fromkeys(part for part in parts if part))

    @property
    def folder(self) -> Path:
        return self.export_to or Path()


export_options = collected("Export", ExportOptions, "exporting")
