"""The layouts that the closed loop carries out beside the plan, by number of ranks.

The mechanisms that `execute` carries out stand here alone, and on four ranks beside one
another; models with experts have layouts of their own. The first six are those of a
short loop.
"""

from __future__ import annotations

from collections.abc import Iterator

from costmodel.layout.layout import Layout
from costmodel.machine.assembly import Machine
from costmodel.options.pins import Pins
from costmodel.simulation.question import resolve
from costmodel.simulation.remat_auto import spelled_out
from costmodel.support.support_table import require_supported
from profiles.commandline.options import JobOptions
from profiles.models.job import Job, Model
from profiles.models.spec import DecoderSpec

ALONE: dict[str, Pins] = {
    "micro-batch 1": Pins(micro_batch=1),
    "micro-batch 2": Pins(micro_batch=2),
    "micro-batch 4": Pins(micro_batch=4),
    "micro-batch 4, recompute full": Pins(micro_batch=4, recompute="full"),
    "micro-batch 2, recompute selective": Pins(micro_batch=2, recompute="selective"),
    "micro-batch 8, recompute full": Pins(micro_batch=8, recompute="full"),
}
TWO: dict[str, Pins] = {
    "dp": Pins(dp=2, zero=0, micro_batch=2),
    "zero 1": Pins(dp=2, zero=1, micro_batch=2),
    "zero 3": Pins(dp=2, zero=3, micro_batch=4),
    "tp": Pins(tp=2, sequence_parallel=False, micro_batch=2),
    "pp 1f1b": Pins(pp=2, micro_batch=2),
    "cp ring": Pins(cp=2, zero=0, micro_batch=4),
    "dp, micro-batch 4": Pins(dp=2, zero=0, micro_batch=4),
    "dp, recompute full": Pins(dp=2, zero=0, micro_batch=4, recompute="full"),
    "zero 2": Pins(dp=2, zero=2, micro_batch=2),
    "zero 3, recompute selective": Pins(
        dp=2, zero=3, micro_batch=2, recompute="selective"
    ),
    "tp, sequence parallel": Pins(tp=2, sequence_parallel=True, micro_batch=4),
    "pp gpipe": Pins(pp=2, schedule="gpipe", micro_batch=2),
    "pp interleaved": Pins(pp=2, virtual_stages=2, micro_batch=2),
    "pp zb-h1": Pins(pp=2, schedule="zb-h1", micro_batch=1),
    "pp zb-v": Pins(pp=2, schedule="zb-v", micro_batch=2),
    "pp dualpipe-v": Pins(pp=2, schedule="dualpipe-v", micro_batch=2),
    "cp all-gather, zero 1": Pins(cp=2, cp_kind="all-gather", zero=1, micro_batch=2),
    "cp ulysses": Pins(cp=2, cp_kind="ulysses", zero=0, micro_batch=2),
}
FOUR: dict[str, Pins] = {
    "dp 4": Pins(dp=4, zero=0, micro_batch=2),
    "zero 3 over 4": Pins(dp=4, zero=3, micro_batch=2),
    "tp 4, sequence parallel": Pins(tp=4, sequence_parallel=True, micro_batch=4),
    "pp 4 1f1b": Pins(pp=4, micro_batch=1),
    "dp 2 × tp 2": Pins(dp=2, tp=2, zero=0, sequence_parallel=False, micro_batch=4),
    "dp 2 × pp 2": Pins(dp=2, pp=2, zero=0, micro_batch=1),
    "zero 1 over 4": Pins(dp=4, zero=1, micro_batch=1),
    "zero 3 over 2 × tp 2": Pins(dp=2, tp=2, zero=3, micro_batch=4, recompute="full"),
    "tp 2 × pp 2": Pins(tp=2, pp=2, sequence_parallel=True, micro_batch=2),
    "pp 4 interleaved": Pins(pp=4, virtual_stages=2, micro_batch=1),
    "pp 4 zb-v": Pins(pp=4, schedule="zb-v", micro_batch=1),
    "cp 4 ring": Pins(cp=4, zero=0, micro_batch=4),
    "dp 2 × cp 2 ulysses": Pins(dp=2, cp=2, cp_kind="ulysses", zero=2, micro_batch=2),
}
BY_RANKS = {1: ALONE, 2: TWO, 4: FOUR}
EXPERTS_ON_TWO: dict[str, Pins] = {
    "dp": Pins(dp=2, zero=0, micro_batch=2),
    "dp, ep 2": Pins(dp=2, ep=2, zero=0, micro_batch=2),
    "zero 1, ep 2": Pins(dp=2, ep=2, zero=1, micro_batch=2),
    "tp, ep 2": Pins(tp=2, ep=2, sequence_parallel=True, micro_batch=2),
    "pp 1f1b": Pins(pp=2, micro_batch=2),
    "cp ring, ep 2": Pins(cp=2, ep=2, zero=0, micro_batch=4),
    "dp, micro-batch 4": Pins(dp=2, zero=0, micro_batch=4),
    "dp, ep 2, micro-batch 4": Pins(dp=2, ep=2, zero=0, micro_batch=4),
    "zero 1": Pins(dp=2, zero=1, micro_batch=2),
    "zero 2, ep 2": Pins(dp=2, ep=2, zero=2, micro_batch=2),
    "zero 3": Pins(dp=2, zero=3, micro_batch=4),
    "zero 3, ep 2": Pins(dp=2, ep=2, zero=3, micro_batch=4),
    "tp": Pins(tp=2, etp=1, sequence_parallel=True, micro_batch=2),
    "pp gpipe": Pins(pp=2, schedule="gpipe", micro_batch=2),
    "pp interleaved": Pins(pp=2, virtual_stages=2, micro_batch=2),
    "dp, ep 2, recompute full": Pins(
        dp=2, ep=2, zero=0, micro_batch=4, recompute="full"
    ),
}
EXPERTS_ON_FOUR: dict[str, Pins] = {
    "dp 4": Pins(dp=4, zero=0, micro_batch=2),
    "dp 4, ep 2": Pins(dp=4, ep=2, zero=0, micro_batch=2),
    "dp 4, ep 4": Pins(dp=4, ep=4, zero=0, micro_batch=2),
    "zero 1 over 4, ep 2": Pins(dp=4, ep=2, zero=1, micro_batch=1),
    "dp 2 × tp 2, ep 2": Pins(
        dp=2, tp=2, ep=2, zero=0, sequence_parallel=True, micro_batch=4
    ),
    "dp 2 × pp 2, ep 2": Pins(dp=2, pp=2, ep=2, zero=0, micro_batch=1),
    "dp 2 × pp 2": Pins(dp=2, pp=2, zero=0, micro_batch=1),
    "zero 3 over 4, ep 4": Pins(dp=4, ep=4, zero=3, micro_batch=2),
    "dp 2 × cp 2, ep 4": Pins(dp=2, cp=2, ep=4, zero=0, micro_batch=2),
    "tp 2 × pp 2, ep 2": Pins(tp=2, pp=2, ep=2, sequence_parallel=True, micro_batch=2),
    "pp 4 1f1b": Pins(pp=4, micro_batch=1),
    "tp 4, ep 4": Pins(tp=4, ep=4, sequence_parallel=True, micro_batch=4),
}
WITH_EXPERTS = {1: ALONE, 2: EXPERTS_ON_TWO, 4: EXPERTS_ON_FOUR}
RANKS = tuple(BY_RANKS)


def named_layouts(
    known: Model, on: Machine, ranks: int
) -> Iterator[tuple[str, Job, Layout]]:
    """The name of each layout, the job and the layout; raises for one that cannot be
    carried out."""
    wish = JobOptions(gpus=ranks)
    moe = isinstance(known.spec, DecoderSpec) and known.spec.moe is not None
    for name, pins in (WITH_EXPERTS if moe else BY_RANKS)[ranks].items():
        asked = resolve(known, on.cluster, wish, pins)
        layout = spelled_out(asked.choice, asked.job, on, executable=True)
        require_supported(layout, asked.job)
        yield name, asked.job, layout
