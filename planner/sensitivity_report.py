"""Sensitivities: a table, and members of the JSON document."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from costmodel.layout_file import layout_document
from planner.sensitivity import Sensitivity
from planner.words import short_candidate_words
from profiles.units import format_bytes, format_seconds

if TYPE_CHECKING:
    from rich.table import Table


def sensitivity_document(found: Sensitivity) -> dict[str, Any]:
    """One entry of `sensitivities`; `layout` is null where it stays the same."""
    estimate = found.after.estimate
    return {
        "change": found.change,
        "how": found.how,
        "throughput": found.throughput,
        "step_time_s": estimate.step_time_s,
        "peak_memory_bytes": estimate.peak_memory_bytes,
        "layout": layout_document(estimate.layout) if found.other_layout else None,
    }


def sensitivities_table(rows: Sequence[Sensitivity]) -> Table:
    """One line a change: what it buys, and with which layout."""
    from rich.table import Table

    table = Table(box=None, padding=(0, 1), header_style="bold", show_edge=False)
    table.add_column("what if", overflow="fold")
    for name in ("tokens/s", "step", "peak"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("how")
    table.add_column("layout", overflow="fold")
    for row in rows:
        estimate = row.after.estimate
        table.add_row(
            row.change,
            f"{row.throughput:+.1%}",
            format_seconds(estimate.step_time_s),
            format_bytes(estimate.peak_memory_bytes),
            row.how,
            short_candidate_words(row.after, estimate.job.global_batch)
            if row.other_layout
            else "the same",
        )
    return table
