"""`plan --jobs`: the question of a command line, answered and shown."""

from __future__ import annotations

from math import inf
from pathlib import Path

from costmodel.machine import cluster_called, cluster_name
from costmodel.options import Pins
from costmodel.report import pairs_table
from planner.jobs.jobs_file import read_jobs
from planner.jobs.policies import policies
from planner.jobs.report import document, lines, page, table
from planner.jobs.times import Job, Planner
from planner.problem import Goal
from profiles.commandline import JobOptions, console, emit_json, premise
from profiles.errors import Infeasible, InvalidQuestion
from profiles.files import require_apart, write_text


def answer(
    file: Path,
    job: JobOptions,
    pins: Pins,
    goal: Goal,
    *,
    report: Path | None,
    time_limit_s: float | None,
    as_json: bool,
) -> None:
    """Print how the jobs of *file* share the cluster, and write the page."""
    require_apart({"--report": report}, (file, *job.files))
    if report is not None:
        from costmodel.pages import require_bokeh

        require_bokeh()
    entries = read_jobs(file)
    where = cluster_name(job.cluster, None)
    cluster = cluster_called(where, None)
    gpus = job.gpus or cluster.gpus
    if gpus is None:
        raise InvalidQuestion(
            f"--gpus is missing and {cluster.name} has no fixed number of them; say "
            "how many the jobs share, such as --gpus 64"
        )
    premise({"cluster": where, "gpus": gpus, "schedule": None, "jobs": len(entries)})
    planner = Planner(
        cluster=cluster,
        where=where,
        options=job,
        pins=pins,
        goal=goal,
        time_limit_s=inf if time_limit_s is None else time_limit_s,
    )
    jobs = list(planner.jobs(entries, gpus))
    _require_plans(jobs, gpus)
    found = policies(jobs, gpus, cluster.island.devices_per_node)
    if report is not None:
        write_text(report, page(jobs, found, where, gpus))
    if as_json:
        emit_json(document(jobs, found, where, gpus))
        return
    screen = console()
    screen.print(pairs_table(lines(found, gpus)))
    screen.print()
    screen.print(table(jobs, found[0]))


def _require_plans(jobs: list[Job], gpus: int) -> None:
    """Raise Infeasible for jobs that no way to share runs all of."""
    wide = [job.name for job in jobs if not job.plans]
    spilled = [job.name for job in jobs if job.spilled is None]
    if wide and spilled:
        raise Infeasible(
            f"no layout of {wide[0]} on any number of GPUs up to {gpus:,} was found, "
            f"nor one of {spilled[0]} spilled on one GPU",
            constraint="memory",
            nearest="more --gpus, or a larger device (--cluster)",
        )
