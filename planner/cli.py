"""The command `plan`: which layout should I use?"""

from __future__ import annotations

from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from costmodel.pins import Pins, layout_options
from profiles.command import command, premise, warn
from profiles.errors import OutOfTime, Unsupported
from profiles.job_options import JobOptions, job_options
from profiles.parameters import one_of, path, real, text, whole
from profiles.terminal import console, emit_json

if TYPE_CHECKING:
    from costmodel.profiled import Profile
    from planner.problem import Problem
    from planner.question import Posed
    from planner.solution import Solution

OBJECTIVES = ("throughput", "cost", "memory", "time-to-train")
COMPARE_S = 30.0  # given to each search of --compare-searches, unless it is said
MOST_RUNNERS_UP = 100


@command("plan", example="plan --model gpt-13b --gpus 64")
@job_options
@layout_options
@click.option(
    "--objective",
    type=one_of(*OBJECTIVES),
    default="throughput",
    metavar="NAME",
    help=f"{', '.join(OBJECTIVES)}.  [default: throughput]",
)
@click.option(
    "--top",
    type=whole(0, MOST_RUNNERS_UP),
    default="5",
    metavar="K",
    help="Runners-up to name.  [default: 5]",
)
@click.option("--out", type=path, metavar="FILE", help="Write the layout file.")
@click.option(
    "--search",
    type=text,
    default="branch-and-bound",
    metavar="NAME",
    help="branch-and-bound, exhaustive.  [default: branch-and-bound]",
)
@click.option(
    "--compare-searches", is_flag=True, help="Run every search and compare them."
)
@click.option(
    "--time-limit",
    type=real(0, 1e9, strictly=True),
    metavar="S",
    help="Stop after S seconds with the best layout so far, and its gap.",
)
@click.option(
    "--executable/--any-mechanism",
    default=None,
    help="Only what `execute` carries out, or all that is priced.  "
    "[default: executable on the cluster local]",
)
@click.option(
    "--probability",
    type=real(0.5, 0.9999),
    metavar="P",
    help="With which the layout is to fit.  [default: 0.95]",
)
@click.option("--any-stage", is_flag=True, hidden=True)
def plan(
    job: JobOptions,
    pins: Pins,
    *,
    objective: str,
    top: int,
    out: Path | None,
    search: str,
    compare_searches: bool,
    time_limit: float | None,
    executable: bool | None,
    probability: float | None,
    any_stage: bool,
    as_json: bool,
) -> None:
    """Which layout should I use? Layout options given here are fixed, the rest is
    searched.

    Prints the best layout, its predicted step time and memory, the proof that no
    other is better, and the best runners-up.
    """
    _refuse(any_stage=any_stage)
    from costmodel.profiled import cluster_name, read_profile
    from planner.searches import search_called

    search_called(search)
    profile = read_profile(job.profile)
    where = cluster_name(job.cluster, profile)
    posed = _posed(job, pins, objective, where, executable, profile, probability)
    for line in posed.warnings:
        warn(line)
    solution = _solved(posed.problem, search, top, time_limit)
    _require_found(posed.problem, solution, where)
    compared = [solution]
    if compare_searches:
        limit = COMPARE_S if time_limit is None else time_limit
        compared += _others(posed.problem, search, limit)
    if out is not None:
        hashes = profile.hashes if profile else ()
        _write(out, posed.problem, solution, where, hashes)
    _show(posed, solution, compared, where, as_json=as_json)


def _refuse(*, any_stage: bool) -> None:
    if any_stage:
        raise Unsupported(
            "--any-stage (stages that differ in mesh) is not part of this version; "
            "leave it out to search layouts with alike stages"
        )


def _posed(
    job: JobOptions,
    pins: Pins,
    objective: str,
    where: str,
    executable: bool | None,
    profile: Profile | None,
    probability: float | None,
) -> Posed:
    from dataclasses import replace

    from costmodel.profiled import cluster_called
    from planner.document import nothing_document, premise_document
    from planner.problem import Objective
    from planner.question import pose
    from profiles.models.catalog import model

    job.require("model")
    found = cluster_called(where, profile.samples if profile else None)
    asked = model(job.model or "")
    posed = pose(
        asked,
        found,
        job,
        pins,
        Objective(objective),
        executable,
        profile,
        probability,
    )
    premise({**premise_document(posed.problem, where), **nothing_document()})
    if job.cluster is None:
        posed = replace(posed, assumed={"cluster": where, **posed.assumed})
    return posed


def _solved(
    problem: Problem, search: str, runners_up: int, time_limit: float | None
) -> Solution:
    from planner.meter import metered
    from planner.plan import solve
    from planner.search import Limits
    from planner.searches import search_called

    with metered(problem.objective.quantity) as meter:
        limits = Limits(
            time_limit_s=inf if time_limit is None else time_limit,
            runners_up=runners_up,
            watch=meter,
        )
        return solve(problem, search_called(search), limits)


def _others(problem: Problem, chosen: str, limit: float) -> list[Solution]:
    """What every search but the *chosen* one finds in *limit* seconds."""
    from planner.searches import SEARCHES

    found = []
    for name in SEARCHES:
        if name == chosen:
            continue
        try:
            found.append(_solved(problem, name, 0, limit))
        except OutOfTime as error:
            warn(f"--search {name}: {error}")
    return found


def _require_found(problem: Problem, solution: Solution, where: str) -> None:
    """Raise Infeasible, with what is known of the search, if nothing was found."""
    if solution.best is not None:
        return
    from planner.diagnosis import diagnose
    from planner.document import nothing_document, premise_document

    premise({**premise_document(problem, where), **nothing_document(solution)})
    raise diagnose(problem)


def _write(
    out: Path,
    problem: Problem,
    solution: Solution,
    where: str,
    hashes: tuple[str, ...],
) -> None:
    from costmodel.stored import write_layout

    assert solution.best is not None, "there is a layout to write"
    layout = solution.best.estimate.layout
    write_layout(out, problem.job, where, layout, hashes)


def _show(
    posed: Posed,
    solution: Solution,
    compared: list[Solution],
    where: str,
    *,
    as_json: bool,
) -> None:
    if as_json:
        emit_json(_document(posed, solution, compared, where))
        return
    from planner.report import plan_view, searches_table

    screen = console()
    screen.print(plan_view(posed.problem, solution, posed.assumed))
    if len(compared) > 1:
        screen.print()
        screen.print(searches_table(posed.problem, compared))


def _document(
    posed: Posed, solution: Solution, compared: list[Solution], where: str
) -> dict[str, Any]:
    from planner.document import (
        answer_document,
        bound_document,
        premise_document,
        search_document,
    )

    document = {
        **premise_document(posed.problem, where),
        **answer_document(posed.problem, solution),
        "assumed": posed.assumed,
        "warnings": list(posed.warnings),
    }
    if len(compared) > 1:
        document["searches"] = [
            {**search_document(one), "bound": bound_document(posed.problem, one)}
            for one in compared
        ]
    return document
