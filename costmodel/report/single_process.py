"""`nn.DataParallel` beside `DistributedDataParallel`, in a few lines of a terminal."""

from __future__ import annotations

from costmodel.compared_processes import ComparedProcesses
from costmodel.report.table import breakdown_words
from profiles.units import format_bytes, format_seconds


def compared_rows(compared: ComparedProcesses) -> tuple[tuple[str, str], ...]:
    """How much slower one process is, where its step goes, and whose memory fills."""
    single, distributed = compared.single, compared.distributed
    first, others, each = (
        format_bytes(float(one.total))
        for one in (single.first, single.others, distributed.memory[0])
    )
    verdict = "" if compared.fits else ", which DOES NOT FIT"
    slower = (
        f"{format_seconds(single.step_time_s)} a step, {compared.slowdown:.2f} times "
        f"the {format_seconds(distributed.step_time_s)} of DistributedDataParallel"
    )
    filled = (
        f"GPU 0 {first}{verdict}, the others {others}; DistributedDataParallel's {each}"
    )
    return (
        ("nn.DataParallel", slower),
        ("its step goes to", breakdown_words(single.breakdown_s)),
        ("its peak memory", filled),
    )
