"""Plans for several numbers of GPUs: a table, and a JSON document."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from costmodel.options import RunOptions
from costmodel.simulation import Estimate
from costmodel.training_run import training
from planner.analysis import Sized, efficiency
from planner.problem import short_candidate_words
from planner.report.document import answer_document, nothing_document, premise_document
from profiles.units import DAY_S, format_seconds

if TYPE_CHECKING:
    from rich.table import Table


def sizes_document(
    rows: Sequence[Sized], where: str, run: RunOptions
) -> dict[str, Any]:
    """``{"plans": [...]}``: the document of one number of GPUs, for each of them."""
    return {"plans": [_document(row, where, run) for row in rows]}


def _document(row: Sized, where: str, run: RunOptions) -> dict[str, Any]:
    posed, solution, found = row.posed, row.solution, row.estimate
    if posed is None:
        premise: dict[str, Any] = {"job": None, "cluster": where, "gpus": row.gpus}
        return {**premise, **nothing_document(), **_reason(row)}
    premise = premise_document(posed.problem, where)
    about = {"assumed": posed.assumed, "warnings": list(posed.warnings)}
    if solution is None or found is None:
        return {**premise, **nothing_document(solution), **_reason(row), **about}
    document = {**premise, **answer_document(posed.problem, solution), **about}
    if run.tokens is not None:
        document["training"] = training(found, run)
    return document


def _reason(row: Sized) -> dict[str, Any]:
    return {"infeasible": {"constraint": row.reason, "nearest": None}}


def sizes_table(rows: Sequence[Sized], run: RunOptions) -> Table:
    """One line a number of GPUs: layout, speed, and what a whole run takes."""
    from rich.table import Table

    tokens = run.tokens
    table = Table(box=None, padding=(0, 1), header_style="bold")
    table.add_column("GPUs", justify="right", no_wrap=True)
    table.add_column("layout", overflow="fold")
    for name in ("step", "tokens/s", "MFU", "per GPU"):
        table.add_column(name, justify="right", no_wrap=True)
    if tokens is not None:
        table.add_column("days", justify="right", no_wrap=True)
    priced = any(row.estimate and row.estimate.device_cost for row in rows)
    cost = "dollars" if tokens is not None else "$/Mtoken"
    if priced:
        table.add_column(cost, justify="right", no_wrap=True)
    shares = efficiency(rows)
    for row in rows:
        table.add_row(*_cells(row, shares, run, priced=priced))
    return table


def _cells(
    row: Sized, shares: dict[int, float], run: RunOptions, *, priced: bool
) -> list[str]:
    found, solution = row.estimate, row.solution
    if found is None or solution is None or solution.best is None:
        return [f"{row.gpus:,}", f"none: {row.reason}"]
    cells = [
        f"{row.gpus:,}",
        short_candidate_words(solution.best, found.job.global_batch),
        format_seconds(found.step_time_s),
        f"{found.tokens_per_s_per_gpu * row.gpus:,.0f}",
        f"{found.mfu:.1%}",
        f"{shares[row.gpus]:.0%}",
    ]
    named = run.tokens is not None
    whole = training(found, run if named else RunOptions(tokens=1e6))
    if named:
        cells.append(f"{(whole['days'] or 0.0):,.1f}")
    if priced and whole["dollars"] is not None:
        cells.append(f"{whole['dollars']:,.{0 if named else 3}f}")
    return cells


def sizes_words(rows: Sequence[Sized], tokens: float | None) -> str:
    """Which number of GPUs is fastest, and which gets most out of each GPU."""
    found = {row.gpus: row.estimate for row in rows if row.estimate}
    fastest = max(found, key=lambda gpus: _rate(found[gpus], gpus))
    shares = efficiency(rows)
    thriftiest = max(shares, key=lambda gpus: shares[gpus])
    words = f"fastest: {fastest:,} GPUs"
    if tokens is not None:
        seconds = tokens / _rate(found[fastest], fastest)
        words += f" ({seconds / DAY_S:,.1f} days)"
    return f"{words}; most from each GPU (the cheapest): {thriftiest:,}"


def _rate(found: Estimate, gpus: int) -> float:
    """Tokens a second."""
    return found.tokens_per_s_per_gpu * gpus
