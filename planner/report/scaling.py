"""Plans for several numbers of GPUs: a table, and a JSON document."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from costmodel.options import RunOptions
from costmodel.simulation import Estimate
from costmodel.sweep import counted_in, unit_of
from costmodel.training_run import training, whole_run
from planner.analysis import Sized, efficiency
from planner.problem import short_candidate_words
from planner.report.document import answer_document, nothing_document, premise_document
from profiles.units import format_seconds

if TYPE_CHECKING:
    from rich.table import Table


def sizes_document(
    rows: Sequence[Sized],
    where: str,
    run: RunOptions,
    scaling: str | None = None,
) -> dict[str, Any]:
    """``{"plans": [...]}``: the document of one number of GPUs, for each of them; and
    the efficiency of a *scaling* curve."""
    each = [_document(row, where, run) for row in rows]
    document: dict[str, Any] = {"plans": each}
    if scaling is not None:
        shares = efficiency(rows)
        document["scaling"] = {
            "kind": scaling,
            "efficiency": [
                {"gpus": row.gpus, "of_linear": shares.get(row.gpus)} for row in rows
            ],
        }
    return document


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


def sizes_table(
    rows: Sequence[Sized], run: RunOptions, scaling: str | None = None
) -> Table:
    """One line a number of GPUs: layout, speed, and what a whole run takes; of a
    *scaling* curve the share of linear scaling."""
    from rich.table import Table

    tokens = run.tokens
    table = Table(box=None, padding=(0, 1), header_style="bold")
    table.add_column("GPUs", justify="right", no_wrap=True)
    if scaling is not None:
        table.add_column("batch", justify="right", no_wrap=True)
    table.add_column("layout", overflow="fold")
    share = "per GPU" if scaling is None else "of linear"
    unit = unit_of(row.estimate for row in rows)
    for name in ("step", f"{unit}/s", "MFU", share):
        table.add_column(name, justify="right", no_wrap=True)
    if tokens is not None:
        table.add_column("days", justify="right", no_wrap=True)
    priced = any(row.estimate and row.estimate.device_cost for row in rows)
    cost = "dollars" if tokens is not None else counted_in(unit, "$/Mtoken")
    if priced:
        table.add_column(cost, justify="right", no_wrap=True)
    shares = efficiency(rows)
    for row in rows:
        cells = _cells(row, shares, run, priced=priced)
        if scaling is not None:
            batch = f"{row.estimate.job.global_batch:,}" if row.estimate else ""
            cells.insert(1, batch)
        table.add_row(*cells)
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
    whole = whole_run(found, run if named else RunOptions(tokens=1e6))
    if named:
        cells.append("never" if whole["days"] is None else f"{whole['days']:,.1f}")
    if priced and whole.get("dollars") is not None:
        cells.append(f"{whole['dollars']:,.{0 if named else 3}f}")
    return cells


def sizes_words(rows: Sequence[Sized], run: RunOptions) -> str:
    """Which number of GPUs is fastest, and which gets most out of each GPU."""
    found = {row.gpus: row.estimate for row in rows if row.estimate}
    fastest = max(found, key=lambda gpus: _rate(found[gpus], gpus))
    shares = efficiency(rows)
    thriftiest = max(shares, key=lambda gpus: shares[gpus])
    words = f"fastest: {fastest:,} GPUs"
    if run.tokens is not None:
        days = whole_run(found[fastest], run)["days"]
        words += "" if days is None else f" ({days:,.1f} days)"
    return f"{words}; most from each GPU (the cheapest): {thriftiest:,}"


def sizes_page(rows: Sequence[Sized], scaling: str | None) -> str:
    """A page with the curves of several numbers of GPUs, against linear scaling of the
    one where a GPU does most; raises Unsupported where Bokeh is missing."""
    from costmodel.pages import Curves, curves_page

    found = [(row.gpus, row.estimate) for row in rows if row.estimate]
    first, least = found[0]
    shares = efficiency(rows)
    best = max(shares, key=lambda gpus: shares[gpus])
    each = dict(found)[best].tokens_per_s_per_gpu
    kind = "" if scaling is None else f"{scaling.capitalize()} scaling: "
    unit = unit_of(one for _, one in found)
    speeds = [(gpus, _rate(one, gpus)) for gpus, one in found]
    linear = [(gpus, each * gpus) for gpus, _ in found]
    charts = [
        Curves(
            name="speed",
            title=f"{unit.capitalize()} per second",
            x_label="GPUs",
            y_label=f"{unit}/s",
            lines={"planned": speeds},
            dashed={f"as on {best:,} GPUs": linear},
            log_x=True,
            log_y=True,
        ),
        Curves(
            name="efficiency",
            title="Efficiency",
            x_label="GPUs",
            y_label="% of linear",
            lines={"": [(gpus, 100 * shares[gpus]) for gpus, _ in found]},
            log_x=True,
        ),
    ]
    heads = ["GPUs", "batch", "layout", "step", f"{unit}/s", "MFU", "of linear"]
    return curves_page(
        f"{kind}{least.job.model} on {first:,} to {found[-1][0]:,} × {least.device}",
        "The best plan for each number of GPUs.",
        charts,
        heads,
        [_numbers(row, shares) for row in rows],
    )


def _numbers(row: Sized, shares: dict[int, float]) -> list[str]:
    gpus, found, solution = row.gpus, row.estimate, row.solution
    if found is None or solution is None or solution.best is None:
        return [f"{gpus:,}", "", f"none: {row.reason}", "", "", "", ""]
    return [
        f"{gpus:,}",
        f"{found.job.global_batch:,}",
        short_candidate_words(solution.best, found.job.global_batch),
        format_seconds(found.step_time_s),
        f"{_rate(found, gpus):,.0f}",
        f"{found.mfu:.1%}",
        f"{shares[gpus]:.0%}",
    ]


def _rate(found: Estimate, gpus: int) -> float:
    """Tokens a second."""
    return found.tokens_per_s_per_gpu * gpus
