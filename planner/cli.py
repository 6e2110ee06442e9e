"""The command `plan`: which layout should I use?"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from costmodel.options import (
    ExportOptions,
    InferenceOptions,
    Pins,
    export_options,
    for_inference,
    inference_options,
    layout_options,
    sweep_options,
)
from planner.inference import LatencyOptions, latency_options
from planner.options import (
    Around,
    Wish,
    around_options,
    search_options,
    several_gpus,
)
from profiles.commandline import (
    CalibrationOptions,
    JobOptions,
    calibration_options,
    command,
    complete_models,
    console,
    counted,
    emit_json,
    flags,
    given,
    hint,
    job_options,
    premise,
    text,
    warn,
    without_defaults,
)
from profiles.errors import Contradiction, OutOfTime, Unsupported
from profiles.files import shown

if TYPE_CHECKING:
    from pathlib import Path

    from costmodel.formats import Present
    from planner.analysis import Largest
    from planner.planning import Planning
    from planner.problem import Asked, Posed, Problem, Solution
    from planner.report import Beside
    from planner.search import Limits

SHOWN = 3  # runners-up on a screen
COMPARE_S = 30.0  # given to each search of --compare-searches, unless it is said


@command(
    "plan",
    example="plan --model gpt-13b --gpus 64\n"
    "  plan megatron_args.sh\n"
    "  plan --model gpt-13b --gpus 64 --report plan.html\n"
    "  plan --model gpt-13b --gpus 64 --export megatron",
)
@click.argument(
    "subject",
    type=text,
    required=False,
    metavar="[MODEL|FILE]",
    shell_complete=complete_models,
)
@several_gpus
@job_options
@layout_options
@export_options
@inference_options
@latency_options
@calibration_options
@around_options
@sweep_options
@search_options
def plan(
    job: JobOptions,
    pins: Pins,
    exporting: ExportOptions,
    inference: InferenceOptions,
    latency: LatencyOptions,
    learning: CalibrationOptions,
    wish: Wish,
    subject: str | None,
) -> None:
    """Which layout should I use? Layout options given here are fixed, the rest is
    searched.

    Prints the best layout, its predicted step time and memory, the proof that no
    other is better, and the best runners-up. Give a model, or a layout file or one of
    another framework to learn what would be better (as --from).
    """
    if subject is not None:
        job, wish = _named(subject, job, wish)
    around = wish.around
    if around.diff is not None:
        job, pins = without_defaults(job), without_defaults(pins)
        learning = without_defaults(learning)
        wish = without_defaults(wish)
    if around.days is not None or around.budget is not None:
        job = without_defaults(job, ["gpus"])
    if inference.inference:
        job, pins, wish = for_inference(job), for_inference(pins), for_inference(wish)
        learning, exporting = for_inference(learning), for_inference(exporting)
    inference.require_alone(
        job, pins, [*wish.of_training, *flags(learning), *flags(exporting)]
    )
    if inference.inference:
        from planner.inference import Shown, answer

        answer(
            job,
            pins,
            inference,
            latency,
            wish.sizes,
            shown=Shown(top=wish.top, as_json=wish.as_json, details=wish.details),
        )
        return
    latency.require_inference()
    if wish.around.jobs is not None:
        from planner.queries import share

        share(job, pins, wish, [*flags(learning), *flags(exporting)])
        return
    if wish.serve or wish.port is not None:
        from planner.queries import explore

        refused = [*flags(learning), *flags(exporting)]
        explore(job, pins, wish, refused)
        return
    _train(job, pins, exporting, learning, wish)


def _named(subject: str, job: JobOptions, wish: Wish) -> tuple[JobOptions, Wish]:
    """The question with what stands before no option: a model, or a configuration."""
    from pathlib import Path

    from costmodel.formats import Subject, subject_of

    is_model = subject_of(subject) is Subject.MODEL
    flag = "--model" if is_model else "--from"
    before: object = wish.around.source
    if is_model:
        job = without_defaults(job, ["model"])
        before = job.model
    if before is not None:
        raise Contradiction(f"{shown(subject)} and {flag} {before}: give one of them")
    if is_model:
        return replace(job, model=subject), wish
    around = replace(wish.around, source=Path(subject))
    return job, replace(wish, around=around)


def _train(
    job: JobOptions,
    pins: Pins,
    exporting: ExportOptions,
    learning: CalibrationOptions,
    wish: Wish,
) -> None:
    """Answer about training: one plan, several numbers of GPUs, or a difference."""
    from planner.planning import Planning
    from planner.queries import (
        compare,
        present_of,
        probe_outputs,
        refuse_beside_diff,
        suited,
    )
    from planner.search import search_called, without_auto
    from profiles.files import require_apart

    around = wish.around
    search_called(wish.search)
    if wish.report is not None:
        from costmodel.pages import require_bokeh

        require_bokeh()
    require_apart(
        {
            "--out": wish.out,
            "--report": wish.report,
            "--save-calibration": learning.save_calibration,
            **wish.what_if.outputs,
            **probe_outputs(around, wish.out),
        },
        (*job.files, *learning.files, *(around.diff or ()), around.source),
    )
    if around.diff is not None:
        refuse_beside_diff(wish, export=bool(given(exporting)))
        _refuse_beside_diff(learning)
        compare(around.diff, job, pins, as_json=wish.as_json)
        return
    _require_range(wish, exporting)
    suits, wish = suited(job, wish, exporting)
    now = present_of(suits, pins, learning, around)
    asked = _asked(now.job if now else suits, without_auto(pins), learning, wish, now)
    implied = {} if suits == job else {"framework": suits.framework}
    planning = Planning(asked=asked, pins=pins, wish=wish, implied=implied)
    if _ranges(wish):
        _several(planning)
    else:
        _one_plan(*_sized(planning), exporting, now)


def _ranges(wish: Wish) -> list[str]:
    """The ways in which several plans are asked for."""
    around = wish.around
    asked = {
        "several numbers of --gpus": wish.sizes or around.scaling,
        "--sweep": wish.what_if.sweep,
        "--versus": around.versus,
    }
    return [name for name, value in asked.items() if value]


def _require_range(wish: Wish, exporting: ExportOptions) -> None:
    """Raise Contradiction for several ways of asking for several plans, and for what
    is about one."""
    from planner.queries import refuse_beside

    several = _ranges(wish)
    if len(several) > 1:
        raise Contradiction(
            f"{' and '.join(several)} each ask for several plans; give one of them "
            "(--sweep takes gpus and cluster too)"
        )
    for what in several:
        tokens = wish.around.run.tokens is not None and what == "--sweep"
        refuse_beside(what, wish, export=bool(given(exporting)), tokens=tokens)
    if not several and any(wish.what_if.outputs.values()):
        wish.what_if.require_sweep(of_several="--sweep, several --gpus or --versus")


def _sized(planning: Planning) -> tuple[Planning, Beside]:
    """With the number of GPUs that days and dollars ask for, where they are given."""
    from planner.analysis import wanted_of
    from planner.queries import sized
    from planner.report import Beside

    asked, around = planning.asked, planning.wish.around
    wanted = wanted_of(around.run, around.days, around.budget)
    if wanted is None:
        return planning, Beside()
    if around.run.rampup is not None:
        raise Contradiction(
            "--rampup-batch-size is about one plan, and --days and --budget compare "
            "several; leave one or the other out"
        )
    if asked.job.gpus is not None:
        raise Contradiction(
            f"--gpus {asked.job.gpus} is what --days and --budget ask for; leave it out"
        )
    gpus, found = sized(wanted, asked, planning.posed, planning.solved, planning.limits)
    job = replace(asked.job, gpus=gpus)
    return replace(planning, asked=replace(asked, job=job)), found


def _several(planning: Planning) -> None:
    """A plan for each of several numbers of GPUs, points of a sweep, or clusters."""
    from planner.what_if import answer_sizes, answer_sweep, answer_versus

    asked, wish = planning.asked, planning.wish
    if asked.calibration is not None:
        from costmodel.report import calibration_lines

        for line in calibration_lines(asked.calibration):
            warn(line)
    what_if, as_json = wish.what_if, wish.as_json
    if what_if.sweep:
        answer_sweep(planning, what_if, as_json=as_json)
    elif wish.around.versus:
        others = [one.strip() for one in wish.around.versus.split(",")]
        answer_versus(planning, others, what_if, as_json=as_json)
    else:
        answer_sizes(planning, what_if, as_json=as_json)


def _one_plan(
    planning: Planning, found: Beside, exporting: ExportOptions, now: Present | None
) -> None:
    """Answer the one question, and what is asked around it."""
    from planner.queries import (
        beside_present,
        export,
        others,
        over_batches,
        probe,
        require_ramp,
        why_not,
        write,
    )
    from planner.report import beside, calibrated, require_answerable

    asked, wish, around = planning.asked, planning.wish, planning.wish.around
    largest = _largest(asked, around, planning.limits())
    limits = planning.limits()
    posed = _posed(asked, largest)
    posed = replace(posed, assumed={**planning.implied, **posed.assumed})
    problem = posed.problem
    require_ramp(around.run, problem)
    require_answerable(problem, around, any_stage=wish.any_stage)
    planning.require_stages(problem)
    first = planning.searched(problem, limits)
    _require_found(problem, first, asked.where, limits)
    solution = planning.improved(problem, first, limits)
    solution, ramped, said = over_batches(
        around.run, problem, solution, planning.at_batch
    )
    found += said
    compared = [first, *_others(problem, wish)]
    read = () if around.source is None else (around.source,)
    found += export(exporting, problem, solution, asked, read)
    if wish.out is not None and solution.best is not None:
        write(wish.out, problem, solution.best, asked)
    found += beside_present(now, problem, solution)
    found += beside(problem, solution, around, largest, planning.solved, limits, ramped)
    found += probe(problem, solution, around, wish.out, asked)
    found += others(problem, solution, around, asked, planning.solved)
    found += why_not(problem, solution, around, asked, planning.solved)
    solution = replace(solution, runners_up=solution.runners_up[: wish.top])
    found += calibrated(asked.calibration)
    if wish.report is not None:
        _write_page(wish.report, posed, solution, planning, found)
    if wish.as_json:
        emit_json(_document(posed, solution, compared, asked.where, found))
    else:
        _show(posed, _screen(solution, wish), compared, found, details=wish.details)


def _write_page(
    file: Path, posed: Posed, solution: Solution, planning: Planning, found: Beside
) -> None:
    from planner.report import plan_page
    from profiles.files import write_text

    made = plan_page(posed, solution, planning.solved, found.members)
    write_text(file, made)


def _refuse_beside_diff(learning: CalibrationOptions) -> None:
    from profiles.errors import Contradiction

    if given(learning):
        raise Contradiction(
            "--diff prices two layout files as they are; leave --calibrate and its "
            "like out"
        )


def _asked(
    job: JobOptions,
    pins: Pins,
    learning: CalibrationOptions,
    wish: Wish,
    now: Present | None,
) -> Asked:
    from costmodel.machine import cluster_called, cluster_name, read_profile
    from costmodel.runs import calibration_of
    from planner.problem import Asked, Goal, Objective
    from profiles import load_model

    profile = read_profile(job.profile) if now is None else now.pricing.profile
    where = cluster_name(job.cluster, profile) if now is None else now.pricing.where
    samples = profile.samples if profile else None
    if now is None:
        job.require("model")
    return Asked(
        model=load_model(job.model or "", seq_len=job.seq_len)
        if now is None
        else now.model,
        cluster=cluster_called(where, samples) if now is None else now.cluster,
        where=where,
        job=job,
        pins=pins,
        goal=Goal(
            objective=Objective(wish.objective),
            executable=wish.executable,
            probability=wish.probability,
            any_stage=wish.any_stage,
            allow_async=wish.allow_async,
        ),
        profile=profile,
        calibration=calibration_of(learning, job) if given(learning) else None,
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


def _others(problem: Problem, wish: Wish) -> list[Solution]:
    """What every search but the chosen one finds, where they are to be compared."""
    from planner.planning import limits_from_now, searched
    from planner.search import SEARCHES

    limit_s = COMPARE_S if wish.time_limit is None else wish.time_limit
    found = []
    names = [one for one in SEARCHES if wish.compare_searches and one != wish.search]
    for name in counted(names, len(names), "searches"):
        try:
            found.append(searched(problem, name, limits_from_now(limit_s, 0)))
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


def _screen(solution: Solution, wish: Wish) -> Solution:
    """With as many runners-up as a screen shows, if --top does not say how many."""
    source = click.get_current_context().get_parameter_source("top")
    few = not wish.details and source is ParameterSource.DEFAULT
    most = SHOWN if few else wish.top
    return replace(solution, runners_up=solution.runners_up[:most])


def _show(
    posed: Posed,
    solution: Solution,
    compared: list[Solution],
    found: Beside,
    *,
    details: bool,
) -> None:
    from planner.report import plan_view, searches_table

    screen = console()
    view = plan_view(
        posed.problem, solution, posed.assumed, found.lines, details=details
    )
    screen.print(view)
    for table in found.tables:
        screen.print()
        screen.print(table())
    if len(compared) > 1:
        screen.print()
        screen.print(searches_table(posed.problem, compared))
    if not details:
        screen.print(hint("the proof, what was searched, and all assumed values"))


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
