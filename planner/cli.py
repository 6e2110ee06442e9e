"""The command `plan`: which layout should I use?"""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from costmodel.pins import Pins, layout_options
from planner.around import Around, around_options, several_gpus
from profiles.command import command, premise, warn
from profiles.errors import Contradiction, OutOfTime
from profiles.job_options import JobOptions, job_options
from profiles.options import given
from profiles.parameters import one_of, path, real, text, whole
from profiles.terminal import console, emit_json

if TYPE_CHECKING:
    from planner.asked import Asked
    from planner.beside import Beside
    from planner.largest import Largest
    from planner.problem import Problem
    from planner.question import Posed
    from planner.solution import Solution

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
    "2bw, pipedream.  [default: branch-and-bound]",
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
    from planner.any_stage import require_possible
    from planner.beside import beside, require_answerable
    from planner.plan import refined
    from planner.retention.polish import without_auto
    from planner.searches import search_called

    search_called(search)
    if around.diff is not None:
        _compare(around.diff, job, pins, as_json=as_json)
        return
    asked = _asked(job, without_auto(pins), objective, executable, probability)

    def improved(problem: Problem, found: Solution) -> Solution:
        better = refined(problem, found, pins, top, time_limit)
        return _widened(problem, better, time_limit) if any_stage else better

    def solved(problem: Problem) -> Solution:
        return improved(problem, _solved(problem, search, top, time_limit))

    if sizes:
        _refuse_beside("several numbers of --gpus", out, around, compare_searches)
        _for_each(asked, sizes, solved, around.tokens, as_json=as_json)
        return
    largest = _largest(asked, around)
    posed = _posed(asked, largest)
    require_answerable(posed.problem, around)
    if any_stage:
        require_possible(posed.problem)
    solution = _solved(posed.problem, search, top, time_limit)
    _require_found(posed.problem, solution, asked.where)
    compared = [solution]
    if compare_searches:
        limit = COMPARE_S if time_limit is None else time_limit
        compared += _others(posed.problem, search, limit)
    solution = improved(posed.problem, solution)
    if out is not None:
        _write(out, posed.problem, solution, asked)
    found = beside(posed.problem, solution, around, largest)
    _show(posed, solution, compared, asked.where, found, as_json=as_json)


def _refuse_beside(what: str, out: Path | None, around: Around, several: bool) -> None:
    """Raise for options that are about one plan, where *what* asks for more."""
    flags = {
        "--out": out is not None,
        "--compare-searches": several,
        "--maximize": around.maximize is not None,
        "--explain": around.explain,
        "--probe": around.probe is not None,
        "--shardings": around.shardings,
    }
    for flag, said in flags.items():
        if said:
            raise Contradiction(f"{flag} is about one plan, not {what}; leave one out")


def _compare(
    files: tuple[Path, Path], job: JobOptions, pins: Pins, *, as_json: bool
) -> None:
    """What differs between two layout files, and what each difference costs."""
    from costmodel.profiled import read_profile
    from costmodel.stored import job_of, machine_of, read_layout_file
    from planner.difference import difference, require_alike
    from planner.difference_report import difference_document, difference_view

    _refuse_options({**given(pins), **given(job)})
    a, b = (read_layout_file(file) for file in files)
    jobs = (job_of(a), job_of(b))
    require_alike(jobs, None if job.cluster else (a.cluster, b.cluster))
    profile = read_profile(job.profile)
    samples = profile.samples if profile else None
    on = machine_of(a, job.cluster, job.framework, samples)
    found = difference(jobs[0], on, a.layout, b.layout)
    if as_json:
        emit_json(difference_document(found, files))
    else:
        console().print(difference_view(found))


def _refuse_options(said: dict[str, Any]) -> None:
    """Raise for options that two layout files answer themselves."""
    left = [name for name in said if name not in ("cluster", "framework", "profile")]
    if left:
        named = ", ".join(f"--{name.replace('_', '-')}" for name in left)
        raise Contradiction(
            f"{named} cannot change the layout files of --diff; leave it out "
            "(--cluster, --framework, --profile may be given)"
        )


def _asked(
    job: JobOptions,
    pins: Pins,
    objective: str,
    executable: bool | None,
    probability: float | None,
) -> Asked:
    from costmodel.profiled import cluster_called, cluster_name, read_profile
    from planner.asked import Asked
    from planner.problem import Objective
    from profiles.models.catalog import model

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


def _largest(asked: Asked, around: Around) -> Largest | None:
    if around.maximize is None:
        return None
    from planner.largest import maximize

    return maximize(asked, around.maximize)


def _posed(asked: Asked, largest: Largest | None) -> Posed:
    """The one problem that was asked, its warnings given."""
    from planner.document import nothing_document, premise_document

    posed = largest.posed if largest else asked.pose()
    premise({**premise_document(posed.problem, asked.where), **nothing_document()})
    for line in posed.warnings:
        warn(line)
    return posed


def _for_each(
    asked: Asked,
    sizes: tuple[int, ...],
    solved: Callable[[Problem], Solution],
    tokens: float | None,
    *,
    as_json: bool,
) -> None:
    """A plan for each number of GPUs; raises what was wrong where none has one."""
    from planner.diagnosis import diagnose
    from planner.sizes import plans
    from planner.sizes_report import sizes_document, sizes_table, sizes_words

    rows = list(plans(sizes, lambda gpus: asked.pose(gpus=gpus), solved))
    document = sizes_document(rows, asked.where, tokens)
    if not any(row.estimate for row in rows):
        premise(document)
        sound = [row.posed for row in rows if row.posed is not None]
        if sound:
            raise diagnose(sound[-1].problem)
        raise next(row.error for row in rows if row.error is not None)
    for row in rows:
        for line in row.posed.warnings if row.posed else ():
            warn(f"{row.gpus} GPUs: {line}")
    if as_json:
        emit_json(document)
        return
    screen = console()
    screen.print(sizes_table(rows, tokens))
    screen.print(sizes_words(rows, tokens))


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


def _widened(
    problem: Problem, solution: Solution, time_limit: float | None
) -> Solution:
    """*solution*, or what stages of unlike meshes can do better."""
    from planner.plan import widen
    from planner.search import Limits

    limit = inf if time_limit is None else time_limit
    return widen(problem, solution, Limits(time_limit_s=limit))


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
    from planner.diagnosis import diagnose_search
    from planner.document import nothing_document, premise_document

    premise({**premise_document(problem, where), **nothing_document(solution)})
    raise diagnose_search(problem, solution)


def _write(
    out: Path,
    problem: Problem,
    solution: Solution,
    asked: Asked,
) -> None:
    from costmodel.stored import write_layout

    assert solution.best is not None, "there is a layout to write"
    layout = solution.best.estimate.layout
    hashes = asked.profile.hashes if asked.profile else ()
    write_layout(out, problem.job, asked.where, layout, hashes)


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
