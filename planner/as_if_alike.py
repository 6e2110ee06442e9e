"""Alike stages over unlike islands, planned as if all devices were alike.

The question is put as if every device were the slowest one, with the least memory and
over the slowest links; what a search chooses is spelled out over the islands as ranks
come, and simulated there. That is what people run who plan so (AMP's authors, Li et
al., NeurIPS 2022, compare with Megatron-LM so); and where devices are the same, or
links between islands fast, alike stages may be better than any inside islands that run
1F1B: by their schedule, or across islands.
"""

from __future__ import annotations

from dataclasses import replace
from math import inf

from costmodel.islands import machines_of
from costmodel.machine import Machine
from costmodel.ranges import Ranges
from planner.problem import Problem
from planner.search import AbstractSearch, Clock, Limits
from planner.solution import Counters, Solution, Status
from planner.stage_found import simulate
from profiles.precision import precision


def over_islands(problem: Problem, search: AbstractSearch, limits: Limits) -> Solution:
    """What *search* chooses for the slowest devices, as it runs on all of them."""
    clock = Clock(limits=limits)
    chosen = search.solve(as_if_alike(problem), limits)
    known = (*([chosen.best] if chosen.best else []), *chosen.runners_up)
    tried = [simulate(problem, one.choice, one.estimate.layout) for one in known]
    fitting = [one for one in tried if one is not None]
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
        counters=Counters(
            considered=seen.considered, simulated=seen.simulated + len(tried)
        ),
        seconds=clock.seconds,
        runners_up=tuple(fitting[1:]),
    )


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
