"""Stages that differ in mesh: what they gain over the best layout of alike stages.

    for each number of micro-batches, the most promising first
        menu         what each layer costs on each mesh               → stage_menu
        partitions   layers → stages → meshes, by Alpa's programme    → stage_partition
        judged       the first few by the event simulation
    cuts             of the best moved layer by layer                 → stage_cuts

(Zheng et al., OSDI 2022.) Those are first whose longest path (`stage_paths`) is
shortest; on one island they know no transfers, the simulation does. A menu whose bound
is not below the best value is passed over, and the least bound of all is the
certificate of the wider space.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import inf
from typing import Final

from costmodel.estimate import estimate
from costmodel.layout import Layout
from costmodel.uniform import Uniform
from planner.lean_stages import Lean, leanest
from planner.problem import Objective, Problem, Staged
from planner.search import Clock, Limits
from planner.solution import EXACT, Counters, Solution, Status, Wider
from planner.stage_cuts import climbed
from planner.stage_menu import Menu, menus
from planner.stage_partition import Partition
from planner.stage_places import is_unlike
from profiles.errors import Contradiction, MeshwrightError, Unsupported

ISLANDS: Final = "islands"  # the search over them
ALONE: Final = "any-stage"  # that of one island where none are alike
TOLERANCE: Final = 0.01  # slowest stages closer than that are tried once
JUDGED: Final = 24  # partitions of a menu that are simulated
HIDDEN: Final = 0.03  # what the simulation may find faster than the programme


def widened(problem: Problem, solution: Solution, limits: Limits) -> Solution:
    """*solution*, or a layout of unlike stages that is better, with the bound of both;
    as it is where no layout of alike stages fits.

    Raises Unsupported where stages cannot differ: what `execute` carries out, another
    schedule than 1F1B.
    """
    require_possible(problem)
    clock = Clock(limits=limits)
    if solution.best is None:
        return solution
    found = stages_of_any(problem, solution.best.choice, solution.value, clock)
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
    there are no alike ones to begin with.

    Raises as `require_possible`, and OutOfTime if time passed before any fitted.
    """
    require_possible(problem)
    clock = Clock(limits=limits)
    alone = Uniform(precision=problem.precision, offload=problem.offload)
    found = stages_of_any(problem, alone, inf, clock)
    if not found.candidates and not found.complete:
        raise clock.out_of_time(found.partitions)
    best = found.candidates[0] if found.candidates else None
    value = inf if best is None else problem.value(best)
    proven = found.complete and found.lower >= value * (1 - EXACT)
    status = Status.OPTIMAL if proven else Status.FEASIBLE
    left_out = found.partitions - found.simulated
    return Solution(
        search=ISLANDS if is_unlike(problem) else ALONE,
        status=Status.INFEASIBLE if best is None else status,
        best=best,
        value=value,
        lower=min(found.lower, value),
        lower_step_time_s=found.lower_s,
        complete=found.complete,
        counters=Counters(
            considered=found.partitions, simulated=found.simulated, by_value=left_out
        ),
        seconds=clock.seconds,
        runners_up=_distinct(found.candidates)[1 : limits.runners_up + 1],
        only_unlike=True,
    )


def _distinct(candidates: Sequence[Staged]) -> tuple[Staged, ...]:
    """Of those that differ in cuts or retention alone the first."""
    found: dict[object, Staged] = {}
    for one in candidates:
        layout = one.estimate.layout
        meshes = tuple((stage.mesh.tp, stage.mesh.dp) for stage in layout.stages)
        found.setdefault((layout.micro_batches, meshes), one)
    return tuple(found.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """Candidates that fit, the best first; how many partitions were weighed and
    simulated, what none goes below (the value and the seconds), and whether all was
    looked at."""

    candidates: tuple[Staged, ...]
    partitions: int
    simulated: int
    lower: float
    lower_s: float
    complete: bool


def stages_of_any(
    problem: Problem, beside: Uniform, value: float, clock: Clock
) -> Found:
    """Layouts of any stages that fit, of what may be better than *value*."""
    if problem.objective is Objective.MEMORY:
        return _leanest_of_any(problem, beside, value, clock)
    unit = float(problem.value_of(1.0, 1.0))
    found: dict[Layout, Staged] = {}
    best: tuple[Menu, Partition] | None = None
    tried = simulated = 0
    left, opened = deque(_promising(problem)), list[Menu]()

    def judge(menu: Menu, partition: Partition) -> float:
        nonlocal simulated, value
        if clock.over or menu.path_s(partition) >= value / unit:
            return inf
        simulated += 1
        candidate = _judged(problem, beside, menu.layout(partition))
        if candidate is None:
            return inf
        found[candidate.estimate.layout] = candidate
        worth = problem.value(candidate)
        value = min(value, worth)
        return worth

    while left and not clock.over:
        menu = left.popleft()
        if not menu.may_beat(value / unit):
            continue
        opened.append(menu)
        parts = menu.best(tolerance=TOLERANCE, below_s=value / unit * (1 + HIDDEN))
        tried += len(parts)
        for partition in parts[:JUDGED]:
            before = value
            if judge(menu, partition) < before:
                best = menu, partition
    if best is not None:
        menu, partition = best
        for _ in climbed(partition, value, partial(judge, menu)):
            pass
    lower_s = _lower_s([*opened, *left], value / unit)
    return Found(
        candidates=tuple(sorted(found.values(), key=problem.value)),
        partitions=tried,
        simulated=simulated,
        lower=lower_s * unit,
        lower_s=lower_s,
        complete=not left and not clock.over,
    )


def _leanest_of_any(
    problem: Problem, beside: Uniform, value: float, clock: Clock
) -> Found:
    """The same where memory is the objective: of each menu the leanest partition."""
    found: dict[Layout, Staged] = {}
    every = _promising(problem)
    lean = [(menu, _leanest(problem, menu)) for menu in every]
    simulated, complete = 0, True
    for menu, one in sorted(lean, key=lambda pair: pair[1].peak_bytes):
        if clock.over:
            complete = False
            break
        if one.partition is None or one.lower_bytes >= value:
            continue
        simulated += 1
        candidate = _judged(problem, beside, menu.layout(one.partition))
        if candidate is not None:
            found[candidate.estimate.layout] = candidate
            value = min(value, problem.value(candidate))
    return Found(
        candidates=tuple(sorted(found.values(), key=problem.value)),
        partitions=sum(one.partition is not None for _, one in lean),
        simulated=simulated,
        lower=min((one.lower_bytes for _, one in lean), default=value),
        lower_s=min((menu.lower_s for menu in every), default=inf),
        complete=complete,
    )


def _leanest(problem: Problem, menu: Menu) -> Lean:
    return leanest(
        menu.options,
        devices=problem.gpus,
        micro_batches=menu.micro_batches,
        stages=problem.pins.pp,
    )


def _lower_s(every: Sequence[Menu], best_s: float) -> float:
    """What no partition of *every* menu takes less than, of what is below *best_s*."""
    lower_s = best_s
    for menu in every:
        if menu.lower_s < lower_s:
            known = lower_s < inf
            found_s = menu.tighter_s(lower_s) if known else menu.lower_s
            lower_s = min(lower_s, found_s)
    return lower_s


def require_possible(problem: Problem) -> None:
    """Raise Unsupported or Contradiction where stages cannot differ."""
    pins = problem.pins
    if problem.executable:
        raise Unsupported(
            "--any-stage, unlike islands: `execute` carries out stages of one mesh "
            "alone; add --any-mechanism, or leave --any-stage out"
        )
    what = "a cluster of unlike islands" if is_unlike(problem) else "--any-stage"
    if problem.machine.turns > 1:
        raise Unsupported(
            f"{what} on more ranks than the profiled machine has cores: the price of a "
            "stage hangs on who else computes; ask for as many as it has, or leave "
            "--any-stage out"
        )
    wrong = []
    if pins.virtual_stages not in (None, 1):
        wrong.append(f"--virtual-stages {pins.virtual_stages}")
    if pins.schedule not in (None, "1f1b"):
        wrong.append(f"--schedule {pins.schedule}")
    wrong += [
        f"--{name}"
        for name, given in (
            ("recompute-layers", pins.recompute_layers),
            ("zero-group", pins.zero_group),
        )
        if given is not None
    ]
    if wrong:
        raise Contradiction(
            f"{what} with {', '.join(wrong)}: its stages run 1F1B, of any size; "
            "leave one of them out"
        )


def any_fits(problem: Problem) -> bool:
    """Whether a layout of stages of any mesh fits, of those that the programme
    proposes; the most micro-batches, of which memory needs least, first.

    Raises as `require_possible`.
    """
    require_possible(problem)
    alone = Uniform(precision=problem.precision, offload=problem.offload)
    found = (menu for menu in menus(problem) if menu.options)
    for menu in sorted(found, key=lambda menu: -menu.micro_batches):
        parts = menu.best(tolerance=TOLERANCE)
        layouts = map(menu.layout, parts[:JUDGED])
        if any(_judged(problem, alone, layout) is not None for layout in layouts):
            return True
    return False


def _promising(problem: Problem) -> list[Menu]:
    """The menus that have options, by their bounds."""
    found = [menu for menu in menus(problem) if menu.options]
    return sorted(found, key=lambda menu: menu.lower_s)


def _judged(problem: Problem, beside: Uniform, layout: Layout) -> Staged | None:
    """*layout* simulated; None if it cannot run or does not fit."""
    try:
        found = estimate(
            problem.job, problem.machine.cluster, layout, on=problem.machine
        )
    except MeshwrightError:
        return None
    candidate = Staged(choice=beside, estimate=found)
    return candidate if problem.fits(candidate) else None
