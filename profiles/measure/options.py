"""`MeasureOptions`: what `profile` is asked to measure; imports nothing heavy."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from profiles.commandline import (
    LARGEST_SEQUENCE,
    Choice,
    FilePath,
    IntRange,
    collected,
    option,
    text,
)

DEVICES = ("cpu", "cuda")
FORMATS = ("fp32", "tf32", "bf16", "fp16", "fp8")
MOST_RANKS = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasureOptions:
    """As the command line says it; None (or empty) where it does not."""

    device: str | None = option(
        type=Choice(DEVICES), help="[default: cuda where PyTorch sees a GPU]"
    )
    ranks: int | None = option(
        flag="--nproc",
        type=IntRange(1, MOST_RANKS),
        help="Ranks per machine.  [default: one per GPU, or per core up to 4]",
    )
    quick: bool = option(
        default=False,
        is_flag=True,
        help="Within a minute: fewer repeats, not fewer kinds.",
    )
    model: str | None = option(
        type=text,
        metavar="NAME|FILE",
        help="Measure only what planning this model needs.  [default: a spread of "
        "shapes]",
    )
    seq_len: int | None = option(
        type=IntRange(1, LARGEST_SEQUENCE),
        help="Tokens per sequence.  [default: the model's]",
    )
    global_batch: int | None = option(
        type=IntRange(1, LARGEST_SEQUENCE),
        help="Sequences per step.  [default: the model's]",
    )
    precisions: tuple[str, ...] = option(
        default=(),
        flag="--precision",
        type=Choice(FORMATS),
        multiple=True,
        help="May be given several times.  [default: fp32 on a CPU, bf16 and fp32 on a "
        "GPU]",
    )
    nodes: int = option(default=1, flag="--nnodes", type=IntRange(1), help="Machines.")
    rdzv_endpoint: str | None = option(
        type=text,
        metavar="HOST:PORT",
        help="Where the machines meet; run the same command on each.",
    )
    offload_dir: Path | None = option(
        type=FilePath(),
        metavar="DIR",
        help="Folder on the drive to measure, for offloading.  [default: that of "
        "temporary files]",
    )


measure_options = collected("Measurement", MeasureOptions, "options")
