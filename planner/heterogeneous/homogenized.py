"""Alike stages over unlike islands, planned as if all devices were alike.

The question is put as if every device were the slowest one, with the least memory and
over the slowest links (as people run who plan so: AMP, Li et al., NeurIPS 2022); what a
search chooses is spelled out over the islands as ranks come, and simulated there.

1F1B waits for what it sends over a slow link; a V whose backwards are split fills that
time with W, and has both ends on one rank, so that the gradient of a tied embedding
crosses nothing. So it is looked at, too (`PINNED`): chosen as if links were those of an
island everywhere, more of what is chosen so simulated over the islands.
"""

from __future__ import annotations

from dataclasses import replace
from math import ceil, inf
from typing import Final

from costmodel.layout import Ranges
from costmodel.machine import Machine
from costmodel.stages import machines_of
from planner.problem import (
    Counters,
    Problem,
    Solution,
    Staged,
    Status,
    orders,
    simulate,
)
from planner.search import AbstractSearch, Clock, Limits
from profiles.errors import MeshwrightError
from profiles.hardware import precision

PINNED: Final = (("zb-v", 1), ("zb-v", 2))  # and pipeline ranks of an island
WEIGHED: Final = 24  # of each, over the islands: they were chosen without slow links


def by_other_schedules(
    problem: Problem, search: AbstractSearch, limits: Limits
) -> list[Staged]:
    """What *search* chooses for each schedule whose sends may hide, as it runs over the
    islands; the likely ones first, as far as there is time."""
    clock = Clock(limits=limits)
    found, islands = list[Staged](), len(problem.machine.cluster.islands)
    near = as_if_near(problem)
    for schedule, depth in PINNED:
        pins, stages = problem.pins, depth * islands
        if pins.pp not in (None, stages) or clock.over:
            continue
        alike = replace(near, pins=replace(pins, schedule=schedule, pp=stages))
        try:
            chosen = search.solve(alike, replace(clock.shared, runners_up=WEIGHED))
        except MeshwrightError:  # what is pinned does not go together, or not in time
            continue
        found += _on_all(problem, chosen)
    return found


def over_islands(problem: Problem, search: AbstractSearch, limits: Limits) -> Solution:
    """What *search* chooses for the slowest devices, as it runs on all of them."""
    clock = Clock(limits=limits)
    chosen = search.solve(as_if_alike(problem), limits)
    fitting = _on_all(problem, chosen)
    tried = len(chosen.runners_up) + (chosen.best is not None)
    best = fitting[0] if fitting else None
    seen = chosen.counters
    return Solution(
        search=search.name,
        status=Status.FEASIBLE if best else Status.INFEASIBLE,
        best=best,
        value=problem.value(best) if best else inf,
        lower=0.0,
        lower_step_time_s=0.0,
        complete=False,
        counters=Counters(considered=seen.considered, simulated=seen.simulated + tried),
        seconds=clock.seconds,
        runners_up=tuple(fitting[1:]),
    )


def _on_all(problem: Problem, chosen: Solution) -> list[Staged]:
    """Those *chosen* that fit on all devices, simulated there."""
    known = (*([chosen.best] if chosen.best else []), *chosen.runners_up)
    tried = (simulate(problem, one.choice, one.estimate.layout) for one in known)
    return [one for one in tried if one is not None]


def as_if_near(problem: Problem) -> Problem:
    """*problem* on as many of its slowest devices, over the links of their island."""
    alike = as_if_alike(problem)
    places = (place.machine for place in next(orders(problem)))
    near = next(on for on in places if on.device == alike.machine.device)
    island = near.cluster.island
    nodes = ceil(problem.gpus / island.devices_per_node)
    cluster = replace(near.cluster, islands=(replace(island, nodes=nodes),))
    return replace(alike, machine=replace(near, cluster=cluster))


def as_if_alike(problem: Problem) -> Problem:
    """*problem* on as many of its slowest devices, all with the least memory."""
    everyone = Ranges(((0, problem.gpus - 1),))
    several = machines_of(problem.machine, [everyone])
    share = problem.memory_limit_bytes / problem.machine.device.capacity_bytes
    least_bytes = min(on.device.capacity_bytes for on in several)
    number = precision(problem.precision).matmul

    def speed(on: Machine) -> float:
        return on.device.peak_flops_per_s(number)

    return replace(
        problem,
        machine=min(several, key=speed),
        memory_limit_bytes=share * least_bytes,
    )
