"""The timed steps of a run as a trace, a process for each rank, in the form in which
`simulate` writes its priced one (`simulate LAYOUT --compare DIR` reads both).

Steps are laid one after another. Ranks whose clocks do not compare (several machines,
or GPUs' streams) each begin a step at its first action.
"""

from __future__ import annotations

from collections.abc import Sequence

from costmodel.layout import Layout
from costmodel.trace import ACTIONS, Slice, Trace, about
from profiles.models import Job
from runtime.observe.rank_reports import Report, Spans


def measured_trace(
    reports: Sequence[Report], job: Job, layout: Layout, *, one_clock: bool
) -> Trace:
    """What the ranks of a run did in the steps that were timed last."""
    steps = min(len(report.timed) for report in reports)
    slices: list[Slice] = []
    after_s = 0.0
    for step in range(steps):
        ranks = [report.timed[len(report.timed) - steps + step] for report in reports]
        origins = _origins(ranks, one_clock=one_clock)
        found = [
            Slice(
                process=rank,
                thread=ACTIONS,
                name=str(span.action),
                category="action",
                start_s=after_s + span.began_s - origins[rank],
                end_s=after_s + span.ended_s - origins[rank],
                step=step,
            )
            for rank, spans in enumerate(ranks)
            for span in spans
        ]
        after_s = max((one.end_s for one in found), default=after_s)
        slices += found
    return Trace(
        processes={
            rank: _name(rank, report, layout) for rank, report in enumerate(reports)
        },
        about={**about(job, layout, "execute"), "steps": steps},
        slices=slices,
    )


def _origins(ranks: Sequence[Spans], *, one_clock: bool) -> list[float]:
    """When the step began on each rank's clock."""
    first = [spans[0].began_s if spans else 0.0 for spans in ranks]
    return [min(first)] * len(first) if one_clock else first


def _name(rank: int, report: Report, layout: Layout) -> str:
    place = report.pipeline.index(rank)
    held = [n for n, holder in enumerate(report.holders) if holder == place]
    return f"rank {rank}: stage {', '.join(map(str, held))}"
