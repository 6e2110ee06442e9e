"""Stages that differ in mesh: what they gain over the best layout of alike stages.

    for each number of micro-batches
        menu         what each layer costs on each mesh               → stage_menu
        search       layers → stages → meshes, the best simulated     → stage_search

(Zheng et al., OSDI 2022.) The least bound of all menus is the certificate of the wider
space.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import inf
from typing import Final

from costmodel.uniform import Uniform
from planner.as_if_alike import by_other_schedules, over_islands
from planner.branch_and_bound import BranchAndBound
from planner.lean_search import leanest_of_any
from planner.lean_stages import Cuts
from planner.memory_floor import states_fit
from planner.problem import Candidate, Objective, Problem, Staged
from planner.search import Clock, Limits
from planner.solution import (
    EXACT,
    Counters,
    Solution,
    Status,
    Wider,
    hopeless_by_states,
)
from planner.stage_found import Found, simulate
from planner.stage_groups import group_size
from planner.stage_menu import Menu, lean_menus
from planner.stage_partition import Partition
from planner.stage_places import is_unlike, only_unlike
from planner.stage_search import JUDGED, TOLERANCE, stages_of_any
from profiles.errors import Contradiction, MeshwrightError, Unsupported

SHARE: Final = 0.3  # of the time, for alike stages over islands
# Simulations of them: nothing is proven by more, and bounds of slow links are loose.
ALIKE: Final = 100
ISLANDS: Final = "islands"  # the search over them
ALONE: Final = "any-stage"  # that of one island where none are alike


def widened(problem: Problem, solution: Solution, limits: Limits) -> Solution:
    """*solution*, or a layout of unlike stages that is better, with the bound of both;
    as it is where no layout of alike stages fits.

    Raises Unsupported where stages cannot differ: what `execute` carries out, another
    schedule than 1F1B.
    """
    require_possible(problem)
    clock = Clock(limits=limits)
    if solution.best is None or solution.only_unlike:
        return solution
    found = _searched(problem, solution.best.choice, solution.value, clock)
    best, value = solution.best, solution.value
    if found.candidates and problem.value(found.candidates[0]) < value:
        best = found.candidates[0]
        value = problem.value(best)
    known = min(solution.lower, found.lower)
    proven = found.complete and known >= value * (1 - EXACT)
    return replace(
        solution,
        best=best,
        value=value,
        status=Status.OPTIMAL if proven else Status.FEASIBLE,
        lower=min(known, value),
        lower_step_time_s=min(solution.lower_step_time_s, found.lower_s),
        complete=solution.complete and found.complete,
        seconds=solution.seconds + clock.seconds,
        wider=Wider(
            partitions=found.partitions,
            simulated=found.simulated,
            lower=found.lower,
            alike=solution,
        ),
    )


def stages_alone(problem: Problem, limits: Limits) -> Solution:
    """The best layout of stages of any mesh, each of them inside one island, where
    there are no alike ones to begin with; or of alike ones over all islands where
    those are better: the bound does not speak of them.

    Raises as `require_possible`, and OutOfTime if time passed before any fitted.
    """
    require_possible(problem)
    clock = Clock(limits=limits)
    if not states_fit(problem):
        return hopeless_by_states(_name(problem), clock.seconds, only_unlike=True)
    alone = Uniform(precision=problem.precision, offload=problem.offload)
    deep = _very_deep(problem)
    alike = [*_alike(problem, limits), *deep]
    best = min(alike, key=problem.value, default=None)
    value = inf if best is None else problem.value(best)
    found = _searched(problem, alone, value, clock, alone=best is None)
    if best is None and not found.candidates and not found.complete:
        raise clock.out_of_time(found.partitions)
    proven = False
    if found.candidates and problem.value(found.candidates[0]) < value:
        best = found.candidates[0]
        value = problem.value(best)
        proven = found.complete and found.lower >= value * (1 - EXACT)
    lower, lower_s = found.lower, found.lower_s
    if any(one is best for one in deep):  # cut where groups of layers are not
        lower_s = min(lower_s, found.any_cut_s)
        lower = min(lower, _least_value(problem, lower_s))
    status = Status.OPTIMAL if proven else Status.FEASIBLE
    left_out = found.partitions - found.simulated
    others = sorted((*alike, *found.candidates), key=problem.value)
    return Solution(
        search=_name(problem),
        status=Status.INFEASIBLE if best is None else status,
        best=best,
        value=value,
        lower=min(lower, value),
        lower_step_time_s=lower_s,
        complete=found.complete,
        counters=Counters(
            considered=found.partitions, simulated=found.simulated, by_value=left_out
        ),
        seconds=clock.seconds,
        runners_up=_distinct(others, best)[: limits.runners_up],
        only_unlike=True,
    )


def _searched(
    problem: Problem,
    beside: Uniform,
    value: float,
    clock: Clock,
    *,
    alone: bool = False,
) -> Found:
    if problem.objective is Objective.MEMORY:
        return leanest_of_any(problem, beside, value, clock, alone=alone)
    return stages_of_any(problem, beside, value, clock, alone=alone, anything=any_fits)


def _name(problem: Problem) -> str:
    return ISLANDS if is_unlike(problem) else ALONE


def _alike(problem: Problem, limits: Limits) -> list[Candidate]:
    """The best of alike stages over islands, of any schedule, and its runners-up."""
    if not is_unlike(problem):
        return []
    part = replace(limits, time_limit_s=SHARE * limits.time_limit_s)
    search = BranchAndBound(most=ALIKE)
    try:
        found = over_islands(problem, search, part)
    except MeshwrightError:  # nothing in time, or nothing that is legal
        known = []
    else:
        known = [found.best, *found.runners_up] if found.best else []
    if problem.pins.schedule is None and problem.objective is not Objective.MEMORY:
        known += by_other_schedules(problem, search, part)
    return known


def _very_deep(problem: Problem) -> list[Candidate]:
    """What fits by cuts between any layers, where those are too many for the others."""
    deep = is_unlike(problem) and group_size(problem.job.graph.body) > 1
    found = any_fits(problem) if deep else None
    return [found] if found else []


def _least_value(problem: Problem, step_s: float) -> float:
    """What a step that takes no less is worth; 0 where memory is: nothing is known."""
    if problem.objective is Objective.MEMORY:
        return 0.0
    return step_s * float(problem.value_of(1.0, 1.0))


def _distinct(
    candidates: Sequence[Candidate], best: Candidate | None
) -> tuple[Candidate, ...]:
    """Of those that differ from the *best* one, and in more than cuts or retention, the
    first."""
    found: dict[object, Candidate] = {}
    for one in (*([best] if best else []), *candidates):
        layout = one.estimate.layout
        ways = layout.schedule, layout.virtual_stages, layout.micro_batches
        found.setdefault((ways, tuple(stage.mesh for stage in layout.stages)), one)
    return tuple(found.values())[1:]


def require_possible(problem: Problem) -> None:
    """Raise Unsupported or Contradiction where stages cannot differ."""
    if problem.executable:
        raise Unsupported(
            "--any-stage, unlike islands: `execute` carries out stages of one mesh "
            "alone; add --any-mechanism, or leave --any-stage out"
        )
    if not problem.offers("stages", "unlike"):
        instead = "leave --any-stage out"
        if is_unlike(problem):
            instead = "choose --search megatron, which plans for the slowest device"
        raise Unsupported(
            f"--any-stage, unlike islands: {problem.runs_on} has one mesh for all "
            f"stages; {instead}, or add --any-mechanism"
        )
    what = "a cluster of unlike islands" if is_unlike(problem) else "--any-stage"
    if problem.machine.turns > 1:
        raise Unsupported(
            f"{what} on more ranks than the profiled machine has cores: the price of a "
            "stage hangs on who else computes; ask for as many as it has, or leave "
            "--any-stage out"
        )
    wrong = alike_alone(problem)
    if wrong and only_unlike(problem):
        raise Contradiction(
            f"{what} with {', '.join(wrong)}: its stages run 1F1B, of any size; "
            "leave one of them out"
        )


def alike_alone(problem: Problem) -> list[str]:
    """The pins that stages of unlike meshes cannot keep."""
    pins, wrong = problem.pins, []
    if pins.virtual_stages not in (None, 1):
        wrong.append(f"--virtual-stages {pins.virtual_stages}")
    if pins.schedule not in (None, "1f1b"):
        wrong.append(f"--schedule {pins.schedule}")
    wrong += [
        f"--{name}"
        for name, given in (
            ("recompute-layers", pins.recompute_layers),
            ("stage-layers", pins.stage_layers),
            ("first-stage-layers", pins.first_stage_layers),
            ("last-stage-layers", pins.last_stage_layers),
        )
        if given is not None
    ]
    return wrong


def any_fits(problem: Problem, clock: Clock | None = None) -> Staged | None:
    """A layout of stages of any mesh that fits, if there is one: those that need the
    least memory, or where these need more than they seem to, those that the programme
    proposes; the most micro-batches first, as long as there is time by the *clock*.

    Raises as `require_possible`.
    """
    require_possible(problem)
    if not states_fit(problem):
        return None
    alone = Uniform(precision=problem.precision, offload=problem.offload)
    for menu in lean_menus(problem):
        for partition in _proposed(menu):
            if clock is not None and clock.over:
                return None
            found = simulate(problem, alone, menu.layout(partition))
            if found is not None:
                return found
    return None


def _proposed(menu: Menu) -> Iterator[Partition]:
    """One that fits by what its stages need, the one that needs least, and those of the
    programme, as they are asked for; none where no stages need so little."""
    cuts = Cuts.of(
        menu.options,
        devices=menu.problem.gpus,
        micro_batches=menu.micro_batches,
        stages=menu.problem.pins.pp,
    )
    some = cuts.within(inf)
    if some.partition is None:  # no stage needs less than it seems to
        return
    yield some.partition
    lean = cuts.leaner(some)
    assert lean.partition is not None, "it is the same one at worst"
    yield lean.partition
    if group_size(menu.problem.job.graph.body) == 1:  # the programme takes the square
        yield from menu.best(tolerance=TOLERANCE)[:JUDGED]
