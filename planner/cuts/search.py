"""Stages of unequal layers: 1F1B of any cut, beside the layouts of a search's space.

What a rank takes is not what it holds: the first stages of 1F1B hold most micro-batches
in flight, the last one has the head. People give the ends fewer layers (Megatron-LM's
--decoder-first-pipeline-num-layers and -last-), or cut freely (Narayanan et al., SOSP
2019). For every candidate of the space that runs 1F1B on several stages, all cuts
between any layers are one *family*:

    floor(branch)   no cut of any ZeRO level takes less             → cut_floors
    bound(family)   the same with the memory of its stages          → cut_floors
                    and once its stages are priced one by one       → cut_table
    best first      the cuts whose slowest stage is fastest are simulated, and those of
                    the best family moved a layer at a time

Families whose bound is not below the best value are ruled out; of the others the bound
stays open, and is the certificate.
"""

from __future__ import annotations

from dataclasses import replace
from math import inf

import numpy as np

from costmodel.layout import SQRT
from costmodel.options import pins_cut
from planner.cuts.families import Families, units_of
from planner.cuts.remat import FITTED, MOVES_FITTED, NONE, FittedFamilies
from planner.cuts.units import Units
from planner.problem import (
    EXACT,
    ONE_F_ONE_B,
    WORTHWHILE,
    Counters,
    Cuts,
    Objective,
    Problem,
    Solution,
    Space,
    Status,
    Table,
    is_unlike,
    length,
    take,
)
from planner.search import Clock, Limits


def are_searched(problem: Problem) -> bool:
    """Whether stages of unequal layers are in the space of *problem*: not where its
    pins or its machine ask for what the bounds of cuts do not know."""
    pins = problem.pins
    return (
        problem.offers("layers of stages", "unequal")
        and pins.schedule in (None, "1f1b")
        and pins.virtual_stages in (None, 1)
        and pins.recompute_layers is None
        and pins.recompute != "sqrt"
        and problem.objective is not Objective.MEMORY
        and not problem.offload.anything
        and not is_unlike(problem)
        and Units.of(problem.job.graph) is not None
    )


def with_cuts(problem: Problem, solution: Solution, limits: Limits) -> Solution:
    """*solution*, or a cut of the layers that is better, with the bound of both; as it
    is where time is over before anything is known of cuts.

    Raises OutOfTime where layers are pinned, and there is no answer yet.
    """
    if not are_searched(problem):
        return solution
    clock = Clock(limits=limits)
    branches = families(problem)
    if not length(branches):
        return solution
    if clock.over and solution.best is None and pins_cut(problem.pins):
        raise clock.out_of_time(int(branches["leaves"].sum()))
    if clock.over:
        return solution
    hunt = Families(problem=problem, clock=clock, value=solution.value)
    hunt.run(branches)
    if not hunt.lower:
        return solution
    fitting = FittedFamilies(
        problem=problem,
        clock=clock,
        value=hunt.value,
        known=hunt.known,
        tries=FITTED,
        moves=MOVES_FITTED,
    )
    if problem.pins.recompute is None and problem.recomputes_in_part:
        fitting.run(take(branches, branches["recompute"] == NONE))
    return _merged(problem, solution, hunt, fitting, limits)


def families(problem: Problem) -> Table:
    """The branches that run 1F1B on several stages, which the pins cut."""
    space = Space.of(problem)
    several = (space.trunks["pp"] > 1) & (space.trunks["at_once"] == 0)
    branches = space.opened(take(space.trunks, several), only=ONE_F_ONE_B)
    woven = np.ones(length(branches), dtype=bool)
    if pins_cut(problem.pins):
        axes, size = Space.of(problem).axes, units_of(problem).size
        for pp in np.unique(branches["pp"]).tolist():
            turns = all(count % size == 0 for count in axes.cut(pp) or ())
            woven &= (branches["pp"] != pp) | (turns and not axes.is_even(pp))
    return take(branches, woven & (branches["recompute"] != SQRT))


def cuts_do_not_fit(problem: Problem) -> str:
    """To be said where nothing fits, beside what equal stages need."""
    searched = are_searched(problem) and length(families(problem))
    return "; no cut into unequal stages that was tried fits" if searched else ""


def _merged(
    problem: Problem,
    solution: Solution,
    hunt: Families,
    fitting: FittedFamilies,
    limits: Limits,
) -> Solution:
    lower = min(solution.lower, hunt.lower)
    found = fitting.best or hunt.best
    cuts = Cuts(
        considered=hunt.considered,
        simulated=hunt.simulated,
        by_memory=hunt.by_memory,
        lower=hunt.lower,
        even_value=None if pins_cut(problem.pins) else solution.value,
        fitted=fitting.simulated,
        fitted_lower=min(lower, fitting.lower),
    )
    best, others = solution.best, solution.runners_up
    if found is not None:
        best = found
        before = [solution.best] if solution.best is not None else []
        others = tuple([*before, *others][: limits.runners_up])
    value = inf if best is None else problem.value(best)
    proven = best is not None and lower >= value * (1 - EXACT)
    bigger = solution.too_big
    faster = bigger is not None and problem.value(bigger) < value * WORTHWHILE
    status = Status.OPTIMAL if proven else Status.FEASIBLE
    unit = float(problem.value_of(1.0, 1.0))
    if cuts.even_value is None:
        counted = _counters(solution.counters, hunt, fitting)
        solution = replace(solution, counters=counted)
    return replace(
        solution,
        best=best,
        value=value,
        status=Status.INFEASIBLE if best is None else status,
        lower=value if proven else min(lower, value),
        lower_step_time_s=min(solution.lower_step_time_s, hunt.lower / unit),
        seconds=solution.seconds + hunt.clock.seconds,
        runners_up=others,
        too_big=bigger if faster else None,
        cuts=cuts,
    )


def _counters(even: Counters, hunt: Families, fitting: FittedFamilies) -> Counters:
    """Where each candidate has one cut."""
    simulated = hunt.simulated + fitting.simulated
    left = max(hunt.considered - hunt.by_memory - simulated, 0)
    return Counters(
        considered=even.considered + hunt.considered,
        simulated=even.simulated + simulated,
        by_memory=even.by_memory + hunt.by_memory,
        by_value=even.by_value + left,
    )
