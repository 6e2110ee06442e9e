"""The front door: which layout to take.

problem → search → solution, checked here whichever search it was
"""

from __future__ import annotations

from functools import partial
from math import inf
from typing import Final

from costmodel.auto_retention import AUTO
from costmodel.machine import Machine, machine
from costmodel.offload import NOTHING, parse_offload
from costmodel.pins import Pins
from costmodel.question import default_precision, flash_default
from costmodel.support import is_local
from planner.check import check
from planner.memory_floor import hopeless
from planner.offloading import free_tier, over_offloads
from planner.problem import (
    PROBABILITY,
    Objective,
    Problem,
    memory_limit,
)
from planner.retention.least_peak import first_fit
from planner.retention.polish import polished, without_auto
from planner.robust import LOOKED_AT, recommended
from planner.search import AbstractSearch, Clock, Limits
from planner.searches import BASELINES, search_called
from planner.solution import Solution
from planner.stage_places import is_unlike, only_unlike, too_deep
from profiles.cluster import Cluster
from profiles.errors import Unsupported
from profiles.job import Job

DEFAULT: Final = "branch-and-bound"
__all__ = ["check", "plan", "solve"]


def plan(
    job: Job,
    cluster: Cluster,
    *,
    gpus: int,
    pins: Pins | None = None,
    on: Machine | None = None,
    objective: str = "throughput",
    search: str | AbstractSearch = DEFAULT,
    precision: str | None = None,
    memory_limit_bytes: float | None = None,
    probability: float = PROBABILITY,
    runners_up: int = 5,
    time_limit_s: float = inf,
    executable: bool | None = None,
    any_stage: bool = False,
) -> Solution:
    """The best layout of *job* on *gpus* devices of *cluster*, with its certificate.

    *on* is a machine prepared from the cluster (another framework, say); what *pins*
    fix is not searched; what is found fits with at least *probability*, or in
    *memory_limit_bytes* of estimated peak. What
    `execute` does not carry out is left out if *executable* (default: on this machine,
    the cluster `local`). With *any_stage* stages may differ in mesh. If nothing fits,
    the solution's status says so and `diagnosis.diagnose` says why.

    Raises UnknownName, Unsupported, and OutOfTime if nothing was found in time.
    """
    where = on or machine(cluster)
    asked = pins or Pins()
    fixed = without_auto(asked)
    flash = fixed.flash_attention
    limit, away = memory_limit_bytes, free_tier(fixed)
    problem = Problem(
        job=job,
        machine=where,
        gpus=gpus,
        pins=fixed,
        precision=precision or default_precision(cluster),
        gradient_format=where.software.gradient_format,
        flash_attention=flash_default(cluster) if flash is None else flash,
        memory_limit_bytes=memory_limit(where, probability) if limit is None else limit,
        probability=probability,
        offload=NOTHING if away else parse_offload(fixed.offload, fixed.offload_to),
        offloads_to=away,
        objective=Objective(objective),
        executable=is_local(cluster) if executable is None else executable,
        any_stage=any_stage,
    )
    chosen = search_called(search) if isinstance(search, str) else search
    wanted = max(runners_up, LOOKED_AT)
    limits = Limits(time_limit_s=time_limit_s, runners_up=wanted).begun()
    found = solve(problem, chosen, limits)
    found = refined(problem, found, asked, limits)
    if any_stage:
        found = widen(problem, found, limits)
    return sharded(problem, recommended(problem, found, runners_up), limits)


def sharded(
    problem: Problem, solution: Solution, limits: Limits, *, on_disk: bool = False
) -> Solution:
    """*solution* of the default search, its operators sharded as is best; checked.

    Solved programs are kept *on_disk* for the next time, or in memory alone.
    """
    best, clock = solution.best, Clock(limits=limits)
    if clock.over:
        return solution
    if solution.search != DEFAULT and not solution.only_unlike:
        return solution
    if best is None:
        return solution
    if all(stage.mesh.tp == 1 for stage in best.estimate.layout.stages):
        return solution
    from planner.choice_cache import cache_folder
    from planner.own_shardings import with_own_shardings

    cache = cache_folder() if on_disk else None
    found = with_own_shardings(problem, solution, cache, clock)
    if found.best is not best:
        check(problem, found)
    return found


def widen(problem: Problem, solution: Solution, limits: Limits) -> Solution:
    """*solution*, or what stages of unlike meshes can do better; checked. Where there
    are no others, they were searched already; of very deep models they are not."""
    if only_unlike(problem) or too_deep(problem):
        return solution
    from planner.any_stage import widened

    found = widened(problem, solution, limits)
    check(problem, found)
    return found


def solve(problem: Problem, search: AbstractSearch, limits: Limits) -> Solution:
    """Run *search*, and check what it found: none marks its own homework. Where the
    states alone do not fit, there is nothing to search; where offloading is free, it
    is run for each way to offload."""
    if only_unlike(problem) and search.name != DEFAULT:
        _require_baseline(problem, search)
        from planner.as_if_alike import over_islands

        solution = over_islands(problem, search, limits)
    elif only_unlike(problem):
        from planner.any_stage import stages_alone  # of use to few

        solution = stages_alone(problem, limits)
    elif problem.offloads_to is not None:
        again = partial(_solve, search=search)
        solution = over_offloads(problem, again, limits)
    else:
        solution = _solve(problem, limits, search=search)
    check(problem, solution)
    return solution


def _require_baseline(problem: Problem, search: AbstractSearch) -> None:
    """Raise Unsupported for a *search* of alike stages where there are none, or whose
    proof would be of other devices than there are."""
    if not is_unlike(problem):
        raise Unsupported(
            f"--search {search.name} knows alike stages, and --pp {problem.pins.pp} "
            f"does not divide {problem.gpus} GPUs; leave one of them out"
        )
    if search.name not in BASELINES:
        raise Unsupported(
            f"--search {search.name} proves what is best on one island, the cluster "
            f"joins {len(problem.machine.cluster.islands)}: leave --search out, which "
            f"proves it there too, or choose among {', '.join(BASELINES)}, which plan "
            "for the slowest device"
        )


def _solve(problem: Problem, limits: Limits, *, search: AbstractSearch) -> Solution:
    """Where no preset of what is made again fits, the default search looks for layouts
    that choose it stage by stage."""
    if (nothing := hopeless(problem, search.name)) is not None:
        return nothing
    found = search.solve(problem, limits)
    if search.name != DEFAULT:
        return found
    return first_fit(problem, found, Clock(limits=limits))


def refined(
    problem: Problem, solution: Solution, asked: Pins, limits: Limits
) -> Solution:
    """*solution* with retention chosen stage by stage where that is better: what the
    default search found, or any if `--recompute auto` is *asked* for; checked."""
    if asked.recompute != AUTO and solution.search != DEFAULT:
        return solution
    if only_unlike(problem):
        return solution
    found = polished(problem, solution, limits)
    if found is not solution:
        check(problem, found)
    return found
