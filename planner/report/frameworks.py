"""For which software a plan is, and which other would be faster.

A plan is for the framework that was named, else for our own runtime. The same question
is put to the others only where that is asked for: to plan for one takes as long as for
ours, and the recommended layout under another's prices is neither its best nor, most
often, one that it can run.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import inf
from typing import TYPE_CHECKING, Any, Final

from costmodel.layout import Layout
from costmodel.machine import DEFAULT
from costmodel.support import refusals
from planner.analysis import worse
from planner.problem import Asked, Candidate, Problem, Solution, short_candidate_words
from planner.report.extras import Beside
from profiles.commandline import counted
from profiles.errors import MeshwrightError
from profiles.units import format_bytes, format_seconds

if TYPE_CHECKING:
    from rich.table import Table

# What people train with, one of each kin.
MAIN: Final = (
    *(DEFAULT, "megatron-core", "nemo", "torchtitan", "fsdp2"),
    *("deepspeed", "megatron-deepspeed", "colossal-ai", "nanotron"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """The best that one framework can run, or why there is none."""

    framework: str
    best: Candidate | None = None
    reason: str = ""


def software_words(problem: Problem, layout: Layout, *, details: bool = True) -> str:
    """For which software the plan is, and whether that runs *layout*."""
    name, missing = problem.machine.framework.name, lacking(problem, layout)
    who = "meshwright's `execute`" if name == DEFAULT else name
    if not missing and not details:
        return who
    if not missing:
        return f"{who} (other frameworks: --framework, or --compare-frameworks)"
    more = f" (and {len(missing) - 1} more)" if len(missing) > 1 else ""
    return f"{who}, which cannot run it: {missing[0]}{more}"


def lacking(problem: Problem, layout: Layout) -> list[str]:
    """What of *layout* the software that it is priced for does not carry out."""
    name = problem.machine.framework.name
    if name == DEFAULT:
        return refusals(layout, problem.job)
    from costmodel.support import framework_warnings

    return list(framework_warnings(name, layout, problem.job))


def software_document(problem: Problem, layout: Layout) -> dict[str, Any]:
    return {
        "name": problem.machine.framework.name,
        "lacks": lacking(problem, layout),
    }


def in_others(
    problem: Problem,
    best: Candidate,
    asked: Asked,
    solve: Callable[[Problem], Solution],
) -> Beside:
    """The best layout of the same question in each of the main frameworks: which would
    be faster than *best*, in a line, and a table of all."""
    own = problem.machine.framework.name
    names = [name for name in MAIN if name != own]
    each = (_planned(name, asked, solve) for name in names)
    others = list(counted(each, len(names), "frameworks"))
    rows = [Planned(framework=own, best=best), *others]
    rows.sort(key=lambda one: problem.value(one.best) if one.best else inf)
    first, words = rows[0], f"none of {len(others)} others is better than {own}"
    if first.best is not None and first.framework != own:
        gain = -worse(problem, best, first.best)
        layout = short_candidate_words(first.best, problem.job.global_batch)
        took = format_seconds(first.best.estimate.step_time_s)
        words = f"{first.framework} is better by {gain:.1%}: {took} with {layout}"
    return Beside(
        lines=(("frameworks", words),),
        members={"frameworks": [_document(one) for one in rows]},
        tables=(partial(_table, problem, best, rows),),
    )


def _planned(name: str, asked: Asked, solve: Callable[[Problem], Solution]) -> Planned:
    goal = replace(asked.goal, executable=None)
    elsewhere = replace(asked, job=replace(asked.job, framework=name), goal=goal)
    try:
        found = solve(elsewhere.pose().problem)
    except MeshwrightError as error:
        return Planned(framework=name, reason=str(error))
    if found.best is None:
        return Planned(framework=name, reason="no layout was found that fits")
    return Planned(framework=name, best=found.best)


def _document(one: Planned) -> dict[str, Any]:
    return {
        "framework": one.framework,
        "layout": one.best and one.best.estimate.layout.to_dict(),
        "estimate": one.best and one.best.estimate.document(),
        "reason": one.reason or None,
    }


def _table(problem: Problem, best: Candidate, rows: Sequence[Planned]) -> Table:
    """One line a framework, the fastest first."""
    from rich.table import Table

    table = Table(box=None, padding=(0, 1), header_style="bold", show_edge=False)
    table.add_column("framework", no_wrap=True)
    for name in ("step", "slower", "peak"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("layout", overflow="fold")
    for one in rows:
        if one.best is None:
            table.add_row(one.framework, "", "", "", one.reason)
            continue
        found = one.best.estimate
        table.add_row(
            one.framework,
            format_seconds(found.step_time_s),
            f"{worse(problem, best, one.best):.1%}",
            format_bytes(found.peak_memory_bytes),
            short_candidate_words(one.best, problem.job.global_batch),
        )
    return table
