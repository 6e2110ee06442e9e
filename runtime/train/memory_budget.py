"""Which runs may keep what they save within a budget."""

from __future__ import annotations

from costmodel.layout import Layout
from profiles.errors import Contradiction
from runtime.train.options import Options


def require_rematerializable(options: Options, layout: Layout) -> None:
    """Raise Contradiction where --recompute dtr and its budget are not both given, or
    *layout* has what runs on several ranks in a forward, or chooses itself."""
    if (options.recompute is None) != (options.memory_budget is None):
        raise Contradiction(
            "--recompute dtr and --memory-budget MIB go together: give both, or neither"
        )
    if options.recompute is None:
        return
    if options.compiled:
        raise Contradiction(
            "--recompute dtr watches single operators, and --compile joins them; leave "
            "one out"
        )
    chosen = any(plan.retention.tensors for plan in layout.plans)
    spread = any(
        plan.zero or stage.mesh.tp * stage.mesh.cp * stage.mesh.ep > 1
        for stage in layout.stages
        for plan in stage.plans
    )
    if chosen or spread or layout.offload.states:
        raise Contradiction(
            "--recompute dtr decides alone, on each rank, what is run again: plan with "
            "--recompute none --zero 0 --tp 1 --cp 1 --ep 1 and nothing offloaded"
        )
