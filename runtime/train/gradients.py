"""Which runs may all-reduce their gradients in fewer bytes."""

from __future__ import annotations

from costmodel.layout import Layout
from costmodel.operators import GradientCompression
from profiles.models import Job


def require_compressible(text: str | None, job: Job, layout: Layout) -> None:
    """Raise Contradiction where *layout* all-reduces no gradients as *text* says, and
    InvalidSpec for another word."""
    how = GradientCompression.parse(text)
    if how.kind == "none":
        return
    how.require(
        job,
        zero=max(plan.zero for plan in layout.plans),
        away=layout.offload.states,
        copies=max(len(one.held_by) for one in layout.stages),
    )
