"""The front door: which layout to take.

problem → search → solution, checked here whichever search it was
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from math import inf
from typing import Any, Final, TypedDict, Unpack

from costmodel.layout import AUTO
from costmodel.machine import Calibration, Machine, machine
from costmodel.options import Pins, pins_cut
from costmodel.simulation import default_precision, flash_default
from costmodel.support import is_local
from planner.analysis import looked_for, recommended
from planner.cuts import are_searched, with_cuts
from planner.problem import (
    WORTHWHILE,
    Candidate,
    Objective,
    Problem,
    Solution,
    Space,
    Staged,
    asked_of,
    hopeless,
    hopeless_by_states,
    is_unlike,
    kept_of,
    length,
    only_unlike,
    too_deep,
    usual_probability,
)
from planner.result import Plan
from planner.search import (
    BASELINES,
    AbstractSearch,
    BranchAndBound,
    Clock,
    Limits,
    check,
    fast_fit,
    first_fit,
    over_offloads,
    polished,
    search_called,
    without_auto,
)
from profiles.errors import OutOfTime, Unsupported
from profiles.hardware import Cluster
from profiles.models import Job

DEFAULT: Final = "branch-and-bound"
DEGREES: Final = ("tp", "pp", "dp", "cp", "ep")  # in which near-ties differ
__all__ = ["check", "plan", "solve"]


class PlanKeywords(TypedDict, total=False):
    """The keywords that `plan` has beside `gpus`, all optional: see `PlanOptions`."""

    pins: Pins | None
    on: Machine | None
    objective: str
    search: str | AbstractSearch
    precision: str | None
    memory_limit_bytes: float | None
    probability: float | None
    runners_up: int
    time_limit_s: float
    executable: bool | None
    any_stage: bool
    allow_async: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanOptions:
    """What `plan` may be told beside the job, the cluster and the number of GPUs.

    *on* is a machine prepared from the cluster (another framework, say), *calibration*
    what `costmodel.calibrate` made of runs of your own. What *pins* fix is not
    searched; what is found fits with at least *probability* (default: 0.95, of the
    least memory 0.5), or in *memory_limit_bytes* of estimated peak. What
    `execute` does not carry out is left out if *executable* (default: on this machine,
    the cluster `local`). With *any_stage* stages may differ in mesh; *allow_async* lets
    schedules in that do not flush, whose gradients are stale.
    """

    pins: Pins | None = None
    on: Machine | None = None
    calibration: Calibration | None = None
    objective: str = "throughput"  # or cost, memory, time-to-train
    search: str | AbstractSearch = DEFAULT
    precision: str | None = None  # None: the cluster's
    memory_limit_bytes: float | None = None  # None: what the device holds
    probability: float | None = None
    runners_up: int = 5
    time_limit_s: float = inf
    executable: bool | None = None
    any_stage: bool = False
    allow_async: bool = False


def plan(
    job: Job, cluster: Cluster, *, gpus: int, **keywords: Unpack[PlanKeywords]
) -> Plan:
    """The best layout of *job* on *gpus* devices of *cluster*, with its certificate.

    The other keywords are the fields of `PlanOptions`: pins, on, calibration,
    objective, search, precision, memory_limit_bytes, probability, runners_up,
    time_limit_s, executable, any_stage and allow_async. If nothing fits, the plan's
    status says so and `diagnosis.diagnose` says why.

    Raises UnknownName, Unsupported, and OutOfTime if nothing was found in time.
    """
    options = PlanOptions(**keywords)
    problem = _problem(job, cluster, gpus, options)
    search, wanted = options.search, looked_for(options.runners_up)
    chosen = search_called(search) if isinstance(search, str) else search
    limits = Limits(time_limit_s=options.time_limit_s, runners_up=wanted).begun()
    first = solve(problem, chosen, limits)
    pins = options.pins or Pins()
    found = improved(problem, first, pins, limits, options.runners_up)
    left_out = {
        "precision": options.precision,
        "flash_attention": problem.pins.flash_attention,
        "probability": options.probability,
        "executable": options.executable,
    }
    assumed = {
        name: getattr(problem, name) for name, said in left_out.items() if said is None
    }
    return Plan.of(problem, found, assumed)


def improved(
    problem: Problem, first: Solution, asked: Pins, limits: Limits, runners_up: int
) -> Solution:
    """What is better than the *first* solution and no search looks at; with so many
    *runners_up*."""
    found = refined(problem, first, asked, limits)
    if problem.any_stage:
        found = widen(problem, found, limits)
    found = settled(problem, recommended(problem, found, runners_up), asked, limits)
    found = sharded(problem, found, limits)
    return with_faster(problem, found, first.too_big, limits)


def settled(
    problem: Problem, solution: Solution, asked: Pins, limits: Limits
) -> Solution:
    """*solution* whose best was taken for its bad case, with retention and cuts chosen
    for that one too: the answer where its degrees are pinned; checked. What is known of
    the whole space stays."""
    best, other = solution.best, solution.instead_of
    if best is None or other is None or solution.search != DEFAULT:
        return solution
    if Clock(limits=limits).over or isinstance(best, Staged):
        return solution
    degrees: Mapping[str, Any] = best.estimate.layout.summary
    own = problem.repinned(
        replace(problem.pins, **{name: degrees[name] for name in DEGREES})
    )
    alone = replace(limits, runners_up=0, watch=None)
    try:
        found = refined(own, solve(own, BranchAndBound(), alone), asked, alone)
    except OutOfTime:
        return solution
    if found.best is None or found.value >= solution.value:
        return solution
    better = replace(
        solution,
        best=found.best,
        value=found.value,
        lower=min(solution.lower, found.value),
        instead_of=other if problem.value(other) < found.value else None,
    )
    check(problem, better)
    return better


def _problem(job: Job, cluster: Cluster, gpus: int, options: PlanOptions) -> Problem:
    """The question, its defaults resolved."""
    where = options.on or machine(cluster)
    chosen = options.precision or default_precision(cluster)
    where = where.calibrated(options.calibration, job, chosen)
    goal = Objective(options.objective)
    probability, limit = options.probability, options.memory_limit_bytes
    odds = usual_probability(goal) if probability is None else probability
    if limit is None:
        where = asked_of(where, goal, odds)
    fixed = without_auto(options.pins or Pins())
    flash, away = fixed.flash_attention, fixed.free_tier
    executable = options.executable
    return Problem(
        job=job,
        machine=where,
        gpus=gpus,
        pins=fixed,
        precision=chosen,
        gradient_format=where.framework.gradients.format,
        flash_attention=flash_default(cluster) if flash is None else flash,
        memory_limit_bytes=where.device.capacity_bytes if limit is None else limit,
        probability=odds,
        offload=kept_of(fixed, {}),
        offloads_to=away,
        free_bits=fixed.free_bits,
        objective=goal,
        executable=is_local(cluster) if executable is None else executable,
        any_stage=options.any_stage,
        allow_async=options.allow_async,
    )


def with_faster(
    problem: Problem, solution: Solution, bigger: Candidate | None, limits: Limits
) -> Solution:
    """*solution* with the fastest layout that fits by its estimate alone, if it is
    faster by 2 % or more. There is none unless one *bigger* than the margin of memory
    allows, of which the search found the least, is within the device's."""
    best = solution.best
    if best is None or bigger is None or not problem.by_odds or only_unlike(problem):
        return solution
    if problem.objective is Objective.MEMORY or Clock(limits=limits).over:
        return solution
    if bigger.estimate.peak_needed_bytes > problem.memory_limit_bytes:
        return solution
    alone = replace(limits, runners_up=0, watch=None)
    faster = BranchAndBound(below=solution.value * WORTHWHILE)
    try:
        found = solve(problem.at_its_word(), faster, alone)
    except OutOfTime:  # or nothing is as fast
        return solution
    other = found.best
    if other is None or problem.value(other) >= solution.value * WORTHWHILE:
        return solution
    return replace(solution, by_estimate=other)


def sharded(problem: Problem, solution: Solution, limits: Limits) -> Solution:
    """*solution* of the default search, its operators sharded as is best; checked."""
    best, clock = solution.best, Clock(limits=limits)
    if clock.over:
        return solution
    if solution.search != DEFAULT and not solution.only_unlike:
        return solution
    if best is None:
        return solution
    if all(stage.mesh.tp == 1 for stage in best.estimate.layout.stages):
        return solution
    if not problem.offers("operators", "by modules"):
        return solution
    from planner.sharding import with_own_shardings

    found = with_own_shardings(problem, solution, clock)
    if found.best is not best:
        check(problem, found)
    return found


def widen(problem: Problem, solution: Solution, limits: Limits) -> Solution:
    """*solution*, or what stages of unlike meshes can do better; checked. Where there
    are no others, they were searched already; of very deep models they are not."""
    if only_unlike(problem) or too_deep(problem):
        return solution
    from planner.heterogeneous import alike_alone, widened

    if alike_alone(problem):
        return solution

    found = widened(problem, solution, limits)
    check(problem, found)
    return found


def solve(problem: Problem, search: AbstractSearch, limits: Limits) -> Solution:
    """Run *search*, and check what it found: none marks its own homework. Where the
    states alone do not fit, there is nothing to search; where offloading is free, it
    is run for each way to offload."""
    if pins_cut(problem.pins) and search.name != DEFAULT:
        raise Unsupported(
            f"--search {search.name} cuts layers as evenly as can be; leave it out, or "
            "--stage-layers and its like"
        )
    if only_unlike(problem) and search.name != DEFAULT:
        _require_baseline(problem, search)
        from planner.heterogeneous import over_islands

        solution = over_islands(problem, search, limits)
    elif only_unlike(problem):
        from planner.heterogeneous import stages_alone

        solution = stages_alone(problem, limits)
    elif problem.offloads_to is not None or problem.free_bits:
        again = partial(_solve, search=search)
        solution = over_offloads(problem, again, limits)
    else:
        solution = _solve(problem, limits, search=search)
    if solution.best is None and problem.any_stage and not too_deep(problem):
        solution = _of_any_mesh(problem, solution, limits)
    check(problem, solution)
    return solution


def _of_any_mesh(problem: Problem, solution: Solution, limits: Limits) -> Solution:
    """The best of stages of any mesh where no alike ones fit; *solution* where there
    are none either, or the pins ask for alike ones."""
    from planner.heterogeneous import alike_alone, stages_alone

    if only_unlike(problem) or alike_alone(problem):
        return solution
    found = stages_alone(problem, limits)
    return solution if found.best is None else found


def _require_baseline(problem: Problem, search: AbstractSearch) -> None:
    """Raise Unsupported for a *search* of alike stages where there are none, or whose
    proof would be of other devices than there are."""
    if not is_unlike(problem):
        raise Unsupported(
            f"--search {search.name} has only uniform stages, and --pp "
            f"{problem.pins.pp} does not divide {problem.gpus} GPUs; leave one out"
        )
    if search.name not in BASELINES:
        raise Unsupported(
            f"--search {search.name} proves what is best on one island, the cluster "
            f"joins {len(problem.machine.cluster.islands)}: leave --search out, which "
            f"proves it there too, or choose among {', '.join(BASELINES)}, which plan "
            "for the slowest device"
        )


def of_cuts(problem: Problem, search: AbstractSearch, limits: Limits) -> Solution:
    """The best of the layers that are pinned.

    Raises Unsupported where no layers but even ones are searched.
    """
    even = Space.of(problem).even()
    if length(even.branches):
        return search.solve(even.problem, limits)
    if not are_searched(problem):
        raise Unsupported(
            "--stage-layers, --first-stage-layers, --last-stage-layers: plan searches "
            "other layers of stages for 1F1B alone, with nothing offloaded, no "
            "--recompute-layers and not for memory; leave them out, or price a layout "
            "with simulate"
        )
    return hopeless_by_states(search.name, 0.0)


def _solve(problem: Problem, limits: Limits, *, search: AbstractSearch) -> Solution:
    """Where no preset of what is made again fits, the default search looks for layouts
    that choose it stage by stage, and then for stages of unequal layers."""
    if (nothing := hopeless(problem, search.name)) is not None:
        return nothing
    if pins_cut(problem.pins):
        found = of_cuts(problem, search, limits)
    else:
        found = _in_time(problem, limits, search)
    if search.name != DEFAULT or found.best is not None:
        return found
    if not pins_cut(problem.pins):
        found = first_fit(problem, found, Clock(limits=limits))
    return with_cuts(problem, found, limits) if found.best is None else found


def _in_time(problem: Problem, limits: Limits, search: AbstractSearch) -> Solution:
    """What *search* finds; where time is over before the default one has any layout,
    some that fits."""
    try:
        return search.solve(problem, limits)
    except OutOfTime:
        late = search.name == DEFAULT and Clock(limits=limits).over
        found = fast_fit(problem, search.name) if late else None
        if found is None:
            raise
        return found


def refined(
    problem: Problem, solution: Solution, asked: Pins, limits: Limits
) -> Solution:
    """*solution* with retention chosen stage by stage where that is better: what the
    default search found, or any if `--recompute auto` is *asked* for; checked."""
    if asked.recompute != AUTO and solution.search != DEFAULT:
        return solution
    if only_unlike(problem):
        return solution
    even = Space.of(problem).even().problem if pins_cut(problem.pins) else problem
    found = polished(even, solution, limits)
    if found.cuts is None and found.search == DEFAULT:
        found = with_cuts(problem, found, limits)
    if found is not solution:
        check(problem, found)
    return found
