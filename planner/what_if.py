"""What `plan` answers over a range: numbers of GPUs, scaling curves, sweeps, clusters.

Rooms are opened when a question is asked, so that one plan loads no others.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from costmodel.options import SweepOptions
from profiles.commandline import console, counted, emit_json, premise, warn
from profiles.errors import Contradiction, InvalidQuestion

if TYPE_CHECKING:
    from costmodel.simulation import Estimate
    from planner.analysis import Planned, Sized
    from planner.planning import Planning
    from planner.problem import Asked, Posed, Problem, Solution
    from planner.search import Limits


def answer_sizes(planning: Planning, what_if: SweepOptions, *, as_json: bool) -> None:
    """A plan for each number of GPUs, within limits of its own; raises what was wrong
    where none has one, in what the last one left of its time."""
    from planner.analysis import diagnose, plans
    from planner.report import sizes_document, sizes_table, sizes_words

    wish, scaling = planning.wish, planning.wish.around.scaling
    run, where = wish.around.run, planning.asked.where
    if scaling is None:
        solve = planning.solved
        answers = plans(wish.sizes, planning.posed, solve, planning.limits)
        rows = list(counted(answers, len(wish.sizes), "planning"))
    else:
        rows = _curve(planning, scaling)
    document = sizes_document(rows, where, run, scaling)
    if not any(row.estimate for row in rows):
        premise(document)
        sound = [row for row in rows if row.posed is not None]
        if sound and sound[-1].posed is not None:
            raise diagnose(sound[-1].posed.problem, sound[-1].limits)
        raise next(row.error for row in rows if row.error is not None)
    _write_sizes(what_if, rows, scaling)
    for row in rows:
        for line in row.posed.warnings if row.posed else ():
            warn(f"{row.gpus} GPUs: {line}")
    if as_json:
        emit_json(document)
        return
    screen = console()
    screen.print(sizes_table(rows, run, scaling))
    screen.print(sizes_words(rows, run))


def _curve(planning: Planning, scaling: str) -> list[Sized]:
    """A plan for each size of a curve. Searches look at layouts alike in all stages
    alone, and at no runners-up, so that a curve to 131,072 GPUs takes seconds."""
    from planner.analysis import STRONG, WEAK_AT, batches, curve_sizes, plans
    from planner.planning import searched

    asked, island = planning.asked, planning.asked.cluster.islands[0]
    sizes = planning.wish.sizes or curve_sizes(
        island.devices_per_node, asked.cluster.gpus
    )
    batch, at = asked.job.global_batch, min(sizes)
    if batch is None:  # the default, which suits a large cluster
        at = max(sizes) if scaling == STRONG else WEAK_AT
        batch = asked.pose(gpus=at).problem.job.global_batch
    each = batches(scaling, sizes, batch, at)

    def pose(gpus: int) -> Posed:
        return asked.pose(gpus=gpus, global_batch=each[gpus])

    def solve(problem: Problem, limits: Limits) -> Solution:
        found = searched(problem, planning.wish.search, limits)
        problem.forget()
        return found

    limits = planning.limits
    answers = plans(sizes, pose, solve, lambda: replace(limits(), runners_up=0))
    return list(counted(answers, len(sizes), "planning"))


def _write_sizes(
    what_if: SweepOptions, rows: Sequence[Sized], scaling: str | None
) -> None:
    """The files of several numbers of GPUs."""
    from costmodel.sweep import CELLS, csv_text
    from planner.report import sizes_page
    from profiles.files import write_text

    drawn = None if what_if.plot is None else sizes_page(rows, scaling)
    if what_if.csv is not None:
        found = [({"gpus": row.gpus}, row.estimate or str(row.reason)) for row in rows]
        write_text(what_if.csv, csv_text(found, CELLS))
    if what_if.plot is not None and drawn is not None:
        write_text(what_if.plot, drawn)


def answer_sweep(planning: Planning, what_if: SweepOptions, *, as_json: bool) -> None:
    """The best plan at each point of a sweep."""
    from costmodel.pages import sweep_page
    from costmodel.report import layout_words
    from costmodel.sweep import CELLS, columns_of, csv_text, points, show_sweep
    from profiles.files import write_text

    asked = list(points(what_if.sweep))
    answers = ((point, _told(_planned(planning, point))) for point in asked)
    rows = list(counted(answers, len(asked), "planning"))
    if what_if.plot is not None:
        write_text(what_if.plot, sweep_page(rows, "The best plan at each point"))
    if what_if.csv is not None:
        write_text(what_if.csv, csv_text(rows, CELLS))
    show_sweep(
        rows,
        columns_of(rows),
        as_json=as_json,
        words=lambda found: layout_words(found.layout),
    )


def answer_versus(
    planning: Planning, others: Sequence[str], what_if: SweepOptions, *, as_json: bool
) -> None:
    """The same job planned on this cluster and on *others*."""
    from costmodel.report import pairs_table
    from planner.analysis import rivals
    from planner.report import versus_layouts, versus_table, versus_words

    asked, run = planning.asked, planning.wish.around.run
    if asked.profile is not None:
        raise Contradiction(
            "--versus compares clusters of the catalogue or of files; leave --profile "
            "out"
        )
    same = asked.pose().problem
    job = replace(asked.job, global_batch=same.job.global_batch, gpus=same.gpus)
    fixed = replace(planning, asked=replace(asked, job=job))
    names = list(dict.fromkeys((asked.where, *others)))
    points = [{} if name == asked.where else {"cluster": name} for name in names]
    found = [_told(_planned(fixed, point)) for point in points]
    rows = list(zip(names, found, strict=True))
    compared = rivals(rows)
    if all(isinstance(one, str) for one in found):
        raise InvalidQuestion(f"no cluster has a plan: {found[0]}")
    _write_versus(what_if, rows)
    if as_json:
        emit_json({"versus": [one.document(run) for one in compared]})
        return
    screen = console()
    screen.print(versus_table(compared, run))
    screen.print()
    screen.print(pairs_table(versus_layouts(compared)))
    screen.print()
    for line in versus_words(compared):
        screen.print(line)


def _write_versus(
    what_if: SweepOptions, rows: Sequence[tuple[str, Estimate | str]]
) -> None:
    from costmodel.pages import sweep_page
    from costmodel.sweep import CELLS, csv_text
    from profiles.files import write_text

    swept = [({"cluster": name}, found) for name, found in rows]
    if what_if.plot is not None:
        write_text(what_if.plot, sweep_page(swept, "The same job on each cluster"))
    if what_if.csv is not None:
        write_text(what_if.csv, csv_text(swept, CELLS))


def _planned(planning: Planning, point: Mapping[str, Any]) -> Planned:
    """The answer at a point; raises where it names what is not there."""
    from planner.analysis import planned

    asked = _at(planning.asked, point)

    def posed() -> Posed:
        posed = asked.pose()
        planning.require_stages(posed.problem)
        return posed

    return planned(posed, planning.solved, planning.limits())


def _told(found: Planned) -> Estimate | str:
    """The estimate of a plan, or why there is none."""
    return found.estimate or str(found.reason)


def _at(asked: Asked, point: Mapping[str, Any]) -> Asked:
    """The question at a point of a sweep; raises InvalidQuestion."""
    from costmodel.machine import cluster_called
    from costmodel.sweep import at, changed
    from profiles import load_model

    job, pins = at(point, asked.job), at(point, asked.pins)
    where, cluster, model = asked.where, asked.cluster, asked.model
    if "cluster" in point:
        where, cluster = point["cluster"], cluster_called(point["cluster"], None)
    if "model" in point or "seq_len" in point:
        model = load_model(job.model or model.name, seq_len=job.seq_len)
    return replace(
        asked,
        job=job,
        pins=pins,
        where=where,
        cluster=changed(cluster, point),
        model=model,
    )
