"""What is said of a plan over a ramp."""

from __future__ import annotations

from typing import Any

from costmodel.report import layout_words
from planner.ramp.choice import OverRamp
from planner.ramp.phases import Phase
from profiles.units import DAY_S, format_seconds


def ramp_lines(found: OverRamp) -> tuple[tuple[str, str], ...]:
    """Which layout is best over the ramp, or which phases are."""
    days = found.days
    if not found.in_phases:
        compared = f"the best of {len(found.layouts)} over all batches of the ramp"
        return (("over the ramp", f"this layout, {compared}: {days:,.3g} days"),)
    alone = "no layout runs every batch"
    if days is not None:
        alone = f"the best layout for all of it takes {days:,.3g}"
    changes = len(found.phases) - 1
    cost = f"{changes} × {format_seconds(found.replan_s)} to re-plan"
    said = f"in phases {found.days_in_phases:,.3g} days, {cost} ({alone})"
    return (("over the ramp", f"{said}: {_phases(found)}"),)


def _phases(found: OverRamp) -> str:
    return "; ".join(
        f"to {one.batches[-1]:,} sequences "
        + layout_words(found.layouts[one.layout].estimate.layout)
        for one in found.phases
    )


def ramp_document(found: OverRamp) -> dict[str, Any]:
    return {
        "layouts_compared": len(found.layouts),
        "recommended": "phases" if found.in_phases else "one layout",
        "days": found.days,
        "replan_s": found.replan_s,
        "days_in_phases": found.days_in_phases,
        "phases": [_document(found, one) for one in found.phases],
    }


def _document(found: OverRamp, phase: Phase) -> dict[str, Any]:
    return {
        "from": phase.batches[0],
        "to": phase.batches[-1],
        "days": phase.seconds / DAY_S,
        "layout": found.layouts[phase.layout].estimate.layout.to_dict(),
    }
