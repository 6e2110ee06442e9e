"""The command `plan`: which layout should I use?"""

from __future__ import annotations

from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from costmodel.options import Pins, layout_options
from planner.options import Around, around_options, several_gpus
from profiles.commandline import (
    JobOptions,
    command,
    console,
    emit_json,
    job_options,
    one_of,
    path,
    premise,
    real,
    text,
    warn,
    whole,
)
from profiles.errors import OutOfTime, Unsupported

if TYPE_CHECKING:
    from planner.analysis import Largest
    from planner.problem import Asked, Posed, Problem, Solution
    from planner.report import Beside
    from planner.search import Limits

OBJECTIVES = ("throughput", "cost", "memory", "time-to-train")
COMPARE_S = 30.0  # given to each search of --compare-searches, unless it is said
MOST_RUNNERS_UP = 100


@command("plan", example="plan --model gpt-13b --gpus 64")
@several_gpus
@job_options
@layout_options
@around_options
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
    help="branch-and-bound, exhaustive, mcmc, megatron, hf-ladder, fsdp, deepspeed, "
    "2bw, pipedream, recursive.  [default: branch-and-bound]",
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
    help="Only what `execute` carries out, or all that is priced, also of what "
    "--framework lacks.  [default: executable on the cluster local]",
)
@click.option(
    "--probability",
    type=real(0.5, 0.9999),
    metavar="P",
    help="With which the layout is to fit.  [default: 0.95; of the least memory 0.5]",
)
@click.option(
    "--any-stage", is_flag=True, help="Stages may differ in mesh, and in their layers."
)
def plan(
    job: JobOptions,
    pins: Pins,
    around: Around,
    *,
    sizes: tuple[int, ...],
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
    from dataclasses import replace

    from planner.analysis import looked_for, recommended
    from planner.api import refined, sharded, with_faster
    from planner.queries import (
        answer_each,
        compare,
        others,
        probe,
        probe_outputs,
        refuse_beside,
        wanted_runners_up,
        write,
    )
    from planner.report import beside, require_answerable
    from planner.search import search_called, without_auto
    from profiles.files import require_apart

    search_called(search)
    require_apart(
        {"--out": out, **probe_outputs(around, out)}, (*job.files, *(around.diff or ()))
    )
    if around.diff is not None:
        refuse_beside(
            "--diff",
            out,
            around,
            compare_searches,
            tokens=around.tokens is not None,
            any_stage=any_stage,
            time_limit=time_limit is not None,
            probability=probability is not None,
            executable=executable is not None,
        )
        compare(around.diff, job, pins, as_json=as_json)
        return
    asked = replace(
        _asked(job, without_auto(pins), objective, executable, probability),
        any_stage=any_stage,
    )

    wanted = looked_for(wanted_runners_up(top, around))

    def improved(problem: Problem, found: Solution, limits: Limits) -> Solution:
        better = refined(problem, found, pins, limits)
        if any_stage:
            better = _widened(problem, better, limits)
        better = recommended(problem, better, wanted_runners_up(top, around))
        better = sharded(problem, better, limits, on_disk=True)
        return with_faster(problem, better, found.too_big, limits)

    def solved(problem: Problem, limits: Limits | None = None) -> Solution:
        limits = limits or _limits(time_limit, wanted)
        found = improved(problem, _solved(problem, search, limits), limits)
        problem.forget()  # one of several
        return found

    def posed_on(gpus: int) -> Posed:
        found = asked.pose(gpus=gpus)
        if any_stage:
            _require_any_stage(found.problem)
        return found

    if sizes:
        refuse_beside("several numbers of --gpus", out, around, compare_searches)
        answer_each(
            sizes,
            posed_on,
            solved,
            asked.where,
            around.tokens,
            limits=lambda: _limits(time_limit, wanted),
            as_json=as_json,
        )
        return
    largest = _largest(asked, around, _limits(time_limit, wanted))
    limits = _limits(time_limit, wanted)
    posed = _posed(asked, largest)
    require_answerable(posed.problem, around, any_stage=any_stage)
    if any_stage:
        _require_any_stage(posed.problem)
    solution = _solved(posed.problem, search, limits)
    _require_found(posed.problem, solution, asked.where, limits)
    compared = [solution]
    solution = improved(posed.problem, solution, limits)
    if compare_searches:
        limit = COMPARE_S if time_limit is None else time_limit
        compared += _others(posed.problem, search, limit)
    if out is not None and solution.best is not None:
        write(out, posed.problem, solution.best, asked)
    found = beside(posed.problem, solution, around, largest, solved, limits)
    found += probe(posed.problem, solution, around, out, asked)
    found += others(posed.problem, solution, around, asked, solved)
    solution = replace(solution, runners_up=solution.runners_up[:top])
    _show(posed, solution, compared, asked.where, found, as_json=as_json)


def _require_any_stage(problem: Problem) -> None:
    """Raise where stages cannot differ."""
    from planner.heterogeneous import require_possible

    require_possible(problem)


def _asked(
    job: JobOptions,
    pins: Pins,
    objective: str,
    executable: bool | None,
    probability: float | None,
) -> Asked:
    from costmodel.machine import cluster_called, cluster_name, read_profile
    from planner.problem import Asked, Objective
    from profiles.models import model

    profile = read_profile(job.profile)
    where = cluster_name(job.cluster, profile)
    job.require("model")
    return Asked(
        model=model(job.model or ""),
        cluster=cluster_called(where, profile.samples if profile else None),
        where=where,
        job=job,
        pins=pins,
        objective=Objective(objective),
        executable=executable,
        profile=profile,
        probability=probability,
    )


def _largest(asked: Asked, around: Around, limits: Limits) -> Largest | None:
    if around.maximize is None:
        return None
    from planner.analysis import maximize

    return maximize(asked, around.maximize, limits)


def _posed(asked: Asked, largest: Largest | None) -> Posed:
    """The one problem that was asked, its warnings given."""
    from planner.report import nothing_document, premise_document

    posed = largest.posed if largest else asked.pose()
    premise({**premise_document(posed.problem, asked.where), **nothing_document()})
    for line in posed.warnings:
        warn(line)
    return posed


def _limits(time_limit: float | None, runners_up: int) -> Limits:
    """Those of one plan, whose time begins now: what is imported later, or read, is
    part of it."""
    from planner.search import Limits

    limit = inf if time_limit is None else time_limit
    return Limits(time_limit_s=limit, runners_up=runners_up).begun()


def _solved(problem: Problem, search: str, limits: Limits) -> Solution:
    from dataclasses import replace

    from planner.api import solve
    from planner.report import metered
    from planner.search import search_called

    with metered(problem.objective.quantity) as meter:
        return solve(problem, search_called(search), replace(limits, watch=meter))


def _widened(problem: Problem, solution: Solution, limits: Limits) -> Solution:
    """*solution*, or what stages of unlike meshes can do better."""
    from planner.api import widen
    from planner.heterogeneous import alike_alone
    from planner.problem import MOST_LAYERS, only_unlike, too_deep

    if too_deep(problem) and not only_unlike(problem):
        warn(
            f"--any-stage: {problem.job.graph.body:,} layers are more than the "
            f"{MOST_LAYERS} that are cut over unlike meshes; stages are alike"
        )
    if pinned := alike_alone(problem):
        warn(
            f"--any-stage beside {', '.join(pinned)}: stages of unlike meshes run 1F1B "
            "of any layers, so that all stages are alike"
        )
    return widen(problem, solution, limits)


def _others(problem: Problem, chosen: str, limit: float) -> list[Solution]:
    """What every search but the *chosen* one finds in *limit* seconds."""
    from planner.search import SEARCHES

    found = []
    for name in SEARCHES:
        if name == chosen:
            continue
        try:
            found.append(_solved(problem, name, _limits(limit, 0)))
        except (OutOfTime, Unsupported) as error:
            said = f"--search {name}"
            warn(str(error) if said in str(error) else f"{said}: {error}")
    return found


def _require_found(
    problem: Problem, solution: Solution, where: str, limits: Limits
) -> None:
    """Raise Infeasible, with what is known of the search, if nothing was found."""
    if solution.best is not None:
        return
    from planner.analysis import diagnose_search
    from planner.report import nothing_document, premise_document

    premise({**premise_document(problem, where), **nothing_document(solution)})
    raise diagnose_search(problem, solution, limits)


def _show(
    posed: Posed,
    solution: Solution,
    compared: list[Solution],
    where: str,
    found: Beside,
    *,
    as_json: bool,
) -> None:
    if as_json:
        emit_json(_document(posed, solution, compared, where, found))
        return
    from planner.report import plan_view, searches_table

    screen = console()
    screen.print(plan_view(posed.problem, solution, posed.assumed, found.lines))
    for table in found.tables:
        screen.print()
        screen.print(table())
    if len(compared) > 1:
        screen.print()
        screen.print(searches_table(posed.problem, compared))


def _document(
    posed: Posed,
    solution: Solution,
    compared: list[Solution],
    where: str,
    found: Beside,
) -> dict[str, Any]:
    from planner.report import (
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
    document.update(found.members)
    if len(compared) > 1:
        document["searches"] = [
            {
                **search_document(one),
                "bound": bound_document(posed.problem, one) if one.best else None,
            }
            for one in compared
        ]
    return document
