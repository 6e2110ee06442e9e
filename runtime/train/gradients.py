"""Which runs may all-reduce their gradients in fewer bytes."""

from __future__ import annotations

from costmodel.layout import Layout
from costmodel.operators import GradientCompression
from profiles.errors import Contradiction
from profiles.models import Job

ADAM = ("adam", "adamw")


def require_compressible(text: str | None, job: Job, layout: Layout) -> None:
    """Raise Contradiction where *layout* all-reduces no gradients as *text* says, and
    InvalidSpec for another word."""
    how = GradientCompression.parse(text)
    if how.kind == "none":
        return
    asked = f"--compress-gradients {text}"
    levels = sorted({plan.zero for plan in layout.plans})
    if levels != [0] or layout.offload.states:
        raise Contradiction(
            f"{asked} is of gradients that are all-reduced, those of ZeRO 0, and the "
            f"layout has ZeRO {levels[-1]}; plan with --zero 0"
        )
    if job.has_experts or any(len(one.held_by) > 1 for one in layout.stages):
        raise Contradiction(
            f"{asked}: experts, and schedules of two copies, sum their gradients over "
            "groups of their own; leave it out"
        )
    if how.kind == "1bit" and job.optimizer not in ADAM:
        raise Contradiction(
            f"{asked} is 1-bit Adam, not {job.optimizer}; plan with --optimizer adamw"
        )
