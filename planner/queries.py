"""What `plan` answers beside one plan: sizes, differences, layouts to measure.

Rooms are opened when a question is asked, so that one plan loads no others.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from costmodel.options import ExportOptions, Pins, RunOptions
from planner.options import Around, Wish
from profiles.commandline import (
    CalibrationOptions,
    JobOptions,
    console,
    emit_json,
    given,
    warn,
)
from profiles.errors import Contradiction
from profiles.hardware import DEFAULT_CLUSTER

if TYPE_CHECKING:
    from costmodel.formats import Present
    from costmodel.training_run import Ramped
    from planner.analysis import Wanted
    from planner.problem import Asked, Candidate, Posed, Problem, Solution
    from planner.report import Beside
    from planner.search import Limits

OWN_TARGETS: Final = ("torchrun", "slurm", "kubernetes")  # of --export, that `execute`


def refuse_beside(what: str, wish: Wish, **more: bool) -> None:
    """Raise for options that are about one plan, where *what* asks for something else;
    *more* are options that were given, by their names."""
    around = wish.around
    flags = {
        **{f"--{name.replace('_', '-')}": said for name, said in more.items()},
        "--out": wish.out is not None,
        "--report": wish.report is not None,
        "--compare-searches": wish.compare_searches,
        "--maximize": around.maximize is not None,
        "--explain": around.explain,
        "--probe": around.probe is not None,
        "--shardings": around.shardings,
        "--compare-frameworks": around.compare_frameworks,
        "--why-not": bool(around.why_not),
        "--days": around.days is not None,
        "--budget": around.budget is not None,
        "--from": around.source is not None,
        "--rampup-batch-size": around.run.rampup is not None,
        "--versus": bool(around.versus),
        "--scaling": around.scaling is not None and "--gpus" not in what,
        "--sweep": bool(wish.what_if.sweep),
    }
    for flag, said in flags.items():
        if said and flag != what:
            raise Contradiction(f"{flag} is about one plan, not {what}; leave one out")


def refuse_beside_diff(wish: Wish, **more: bool) -> None:
    """Raise for what `--diff`, which searches nothing, leaves unanswered."""
    refuse_beside(
        "--diff",
        wish,
        tokens=wish.around.run.tokens is not None,
        any_stage=wish.any_stage,
        allow_async=wish.allow_async,
        time_limit=wish.time_limit is not None,
        probability=wish.probability is not None,
        executable=wish.executable is not None,
        **more,
    )


def suited(
    job: JobOptions, wish: Wish, exporting: ExportOptions
) -> tuple[JobOptions, Wish]:
    """*job* and *wish* as what is exported needs them where they leave it open: the
    framework whose files are written, or what `execute` carries out.

    Raises UnknownName for a target.
    """
    if not given(exporting):
        return job, wish
    from costmodel.formats import framework_for, require_targets

    require_targets(exporting.targets, exporting.export_to)
    framework = framework_for(exporting.targets)
    if job.framework is None and framework is not None and wish.around.source is None:
        warn(
            f"--framework {framework}: whose files --export {exporting.targets[0]} "
            "writes; give --framework to plan for another"
        )
        return replace(job, framework=framework), wish
    ours = framework is None and job.framework is None
    if ours and wish.executable is None and exporting.targets[0] in OWN_TARGETS:
        return job, replace(wish, executable=True)
    return job, wish


def present_of(
    job: JobOptions, pins: Pins, learning: CalibrationOptions, around: Around
) -> Present | None:
    """The present configuration, priced, where one is given; told what to know of it.

    Raises as `costmodel.formats.present`.
    """
    if around.source is None:
        return None
    from costmodel.formats import present

    if given(learning):
        raise Contradiction(
            "--from prices a configuration as it is; leave --calibrate and its like out"
        )
    found = present(around.source, job, pins)
    for line in (*found.words, *found.pricing.estimate.warnings):
        warn(line)
    return found


def explore(job: JobOptions, pins: Pins, wish: Wish, refused: list[str]) -> None:
    """Serve the explorer, which begins with what was given, until Ctrl-C.

    Raises Contradiction for options that it has no controls for: *refused* and others.
    """
    from planner.explorer import FIELDS, PORT, Catalogue, Server, serve
    from profiles import load_model
    from profiles.hardware import cluster, knows_cluster
    from profiles.models import names

    if not wish.serve:
        raise Contradiction("--port is of the explorer; give --serve too")
    asked = {**given(job), **given(pins)}
    flags = [f"--{name.replace('_', '-')}" for name in asked if name not in FIELDS]
    beside = [
        one for one in wish.of_training if one not in ("--serve", "--port", "--tokens")
    ]
    if wrong := [*flags, *beside, *refused, *(["--json"] if wish.as_json else [])]:
        raise Contradiction(f"--serve has no use for {', '.join(wrong)}; leave it out")
    start: dict[str, Any] = {"model": "gpt-13b", "gpus": 64, **asked}
    start.setdefault("cluster", DEFAULT_CLUSTER)
    own = Catalogue()
    trained = load_model(start["model"], seq_len=job.seq_len)
    start["model"] = trained.name
    if trained.name not in names():
        own = replace(own, own_models={trained.name: trained})
    if not knows_cluster(start["cluster"]):
        where = cluster(start["cluster"])
        own = replace(own, own_clusters={where.name: where})
        start["cluster"] = where.name
    if wish.around.run.tokens is not None:
        start["tokens"] = wish.around.run.tokens
    server = Server(start, own, PORT if wish.port is None else wish.port)
    console().print(f"explore at {server.address} (Ctrl-C ends it)")
    serve(server)


def share(job: JobOptions, pins: Pins, wish: Wish, refused: list[str]) -> None:
    """How several jobs share the GPUs; raises Contradiction for what is about one."""
    from planner.jobs import answer
    from planner.problem import Goal

    kept = ("--jobs", "--report", "--time-limit", "--executable", "--probability")
    asked = {"model", "seq_len", "global_batch", "profile"} & given(job).keys()
    wrong = [f"--{name.replace('_', '-')}" for name in sorted(asked)]
    wrong += [one for one in wish.of_training if one not in kept]
    if wish.sizes:
        wrong.append("several numbers of --gpus")
    if wrong := wrong + refused:
        raise Contradiction(f"--jobs has no use for {', '.join(wrong)}; leave it out")
    assert wish.around.jobs is not None
    answer(
        wish.around.jobs,
        job,
        pins,
        Goal(executable=wish.executable, probability=wish.probability),
        report=wish.report,
        time_limit_s=wish.time_limit,
        as_json=wish.as_json,
    )


def compare(
    files: tuple[Path, Path], job: JobOptions, pins: Pins, *, as_json: bool
) -> None:
    """What differs between two layout files, and what each difference costs."""
    from costmodel.simulation import (
        Options,
        job_of,
        machine_of,
        profile_of,
        read_layout_file,
        require_left_open,
        require_one_price,
    )
    from planner.analysis import (
        difference,
        difference_document,
        difference_view,
        require_alike,
    )

    require_left_open(job, pins, "the layout files of --diff")
    a, b = (read_layout_file(file) for file in files)
    jobs = (job_of(a), job_of(b))
    require_alike(jobs, None if job.cluster else (a.cluster, b.cluster))
    asked = [one.origin.options.under(job, pins) for one in (a, b)]
    require_one_price(*(Options.of(*one) for one in asked))
    profile, said = profile_of(a, job)
    for line in dict.fromkeys((*said, *profile_of(b, job)[1])):
        warn(line)
    samples = profile.samples if profile else None
    on = machine_of(a, job, pins, samples, {})
    machine_of(b, job, pins, samples, {})  # what is asked must suit both
    found = difference(jobs[0], on, a.layout, b.layout)
    if as_json:
        emit_json(difference_document(found, files))
    else:
        console().print(difference_view(found))


def wanted_runners_up(wish: Wish) -> int:
    """How many runners-up to look for: probes are chosen among them."""
    if wish.around.probe is None:
        return wish.top
    from planner.analysis import POOL

    return max(wish.top, POOL * wish.around.probe)


def probe_outputs(around: Around, out: Path | None) -> dict[str, Path | None]:
    """The files that `--probe` writes, by words for each."""
    from planner.analysis import probe_files

    files = probe_files(around.probe or 0, out)
    return {f"--probe {place}:": file for place, file in enumerate(files, 1)}


def probe(
    problem: Problem,
    solution: Solution,
    around: Around,
    out: Path | None,
    asked: Asked,
) -> Beside:
    """Write the layouts worth measuring first."""
    from planner.report import Beside

    if around.probe is None:
        return Beside()
    from planner.analysis import probe_files, probes
    from planner.report import probes_beside

    found = probes(problem, solution, around.probe)
    written = list(zip(probe_files(len(found), out), found, strict=True))
    for file, candidate in written:
        write(file, problem, candidate, asked)
    return probes_beside(problem, solution, written, around.probe)


def beside_present(
    present: Present | None, problem: Problem, solution: Solution
) -> Beside:
    """What the present configuration costs, and what the plan changes of it."""
    from planner.report import Beside

    if present is None or solution.best is None:
        return Beside()
    from planner.analysis import (
        present_document,
        present_lines,
        present_view,
        to_plan,
    )

    found = to_plan(present, problem, solution)
    return Beside(
        lines=present_lines(present, found),
        members=present_document(present, found),
        tables=(lambda: present_view(found),),
    )


def export(
    exporting: ExportOptions,
    problem: Problem,
    solution: Solution,
    asked: Asked,
    read: tuple[Path, ...],
) -> Beside:
    """Write the plan as other frameworks' files."""
    from planner.report import Beside

    best = solution.best
    if not exporting.targets or best is None:
        return Beside()
    from costmodel.formats import exported
    from costmodel.simulation import Pricing, origin_of

    pricing = Pricing(
        estimate=best.estimate,
        on=problem.machine,
        where=asked.where,
        origin=origin_of(asked.job, asked.pins, asked.profile, best.estimate),
        profile=asked.profile,
    )
    files = exported(pricing, exporting, read)
    return Beside(
        lines=tuple(("exported", line) for line in files.words),
        members={"exports": files.document},
    )


def others(
    problem: Problem,
    solution: Solution,
    around: Around,
    asked: Asked,
    solve: Callable[[Problem], Solution],
) -> Beside:
    """The same question in the other main frameworks."""
    from planner.report import Beside

    if not around.compare_frameworks or solution.best is None:
        return Beside()
    from planner.report import in_others

    return in_others(problem, solution.best, asked, solve)


def sized(
    wanted: Wanted,
    asked: Asked,
    pose: Callable[[int], Posed],
    solve: Callable[[Problem, Limits], Solution],
    limits: Callable[[], Limits],
) -> tuple[int, Beside]:
    """The number of GPUs that is *wanted*, and what is said of it."""
    from planner.analysis import Sizing
    from planner.report import Beside

    search = Sizing(
        wanted=wanted, cluster=asked.cluster, pose=pose, solve=solve, limits=limits
    )
    found = search.best()
    return found.gpus, Beside(
        lines=(("sized", search.words(found)),),
        members={"sizing": search.document(found)},
    )


def require_ramp(run: RunOptions, problem: Problem) -> None:
    """Raise for a batch that cannot grow as asked, before anything is searched."""
    if run.rampup is not None:
        from costmodel.training_run import BatchRamp

        ramp = BatchRamp.of(run)
        assert ramp is not None
        ramp.batches(problem.job.global_batch)


def over_batches(
    run: RunOptions,
    problem: Problem,
    solution: Solution,
    planned: Callable[[int], Solution | None],
) -> tuple[Solution, Ramped | None, Beside]:
    """The plan that is best over the whole of a ramp, its run, and what is said;
    *planned* answers at another batch."""
    from planner.report import Beside

    if run.rampup is None or run.tokens is None or solution.best is None:
        return solution, None, Beside()
    from costmodel.training_run import RESTART_S, BatchRamp
    from planner.ramp import over_ramp, ramp_document, ramp_lines

    ramp = BatchRamp.of(run)
    assert ramp is not None
    found = over_ramp(
        problem,
        solution,
        ramp,
        tokens=run.tokens,
        replan_s=RESTART_S if run.restart_time is None else run.restart_time,
        planned=planned,
    )
    document = {"over_ramp": ramp_document(found)}
    beside = Beside(lines=ramp_lines(found), members=document)
    return found.recommended(problem, solution), found.ramped(), beside


def why_not(
    problem: Problem,
    solution: Solution,
    around: Around,
    asked: Asked,
    solve: Callable[[Problem], Solution],
) -> Beside:
    """The best plan with each pin that was asked after."""
    from planner.report import Beside

    if not around.why_not or solution.best is None:
        return Beside()
    from planner.analysis import alternatives

    found = list(alternatives(around.why_not, asked, problem, solution.best, solve))
    batch = problem.job.global_batch
    return Beside(
        lines=tuple((f"why not {one.pin}", one.words(batch)) for one in found),
        members={"why_not": [one.document() for one in found]},
    )


def write(
    out: Path,
    problem: Problem,
    candidate: Candidate,
    asked: Asked,
) -> None:
    from costmodel.simulation import origin_of, spelled, write_layout

    found, profile = candidate.estimate, asked.profile
    write_layout(
        out,
        problem.job,
        spelled(asked.where, asked.cluster),
        found.layout,
        profile.hashes if profile else (),
        origin=origin_of(asked.job, asked.pins, profile, found),
    )
