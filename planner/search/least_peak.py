"""Layouts by the least peak that retention chosen stage by stage can give them.

where no preset fits     the first of them that does          → first_fit
where nothing fits       what the smallest peak comes to      → leanest

A stage may make all again, in segments of any length, where another keeps all; what is
least so is known before anything is simulated
(`costmodel.batched.row_bytes.leanest_bytes`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import inf
from typing import Final

from costmodel.support import BY_STAGE
from planner.problem import (
    Added,
    Candidate,
    Objective,
    Problem,
    Solution,
    Space,
    Status,
    length,
)
from planner.search.frontier import Frontier
from planner.search.search import Clock
from profiles.errors import OutOfTime

NEAR_LEAST: Final = 16  # layouts simulated to find the one with the smallest peak


@dataclass(frozen=True, slots=True, kw_only=True)
class Leanest:
    """The candidate with the smallest peak found; whether none has a smaller one."""

    candidate: Candidate
    proven: bool


def free(problem: Problem) -> bool:
    """Whether retention may be chosen stage by stage."""
    pins = problem.pins
    by_stage = problem.offers("recompute in", BY_STAGE)
    return by_stage and pins.recompute is None and pins.recompute_layers is None


def first_fit(problem: Problem, solution: Solution, clock: Clock) -> Solution:
    """*solution* or, where that found nothing, a layout that fits with retention chosen
    by stage; one is found wherever there is one, if time suffices."""
    if solution.best is not None or not free(problem) or clock.over:
        return solution
    lean = single_sequences(problem.by_stage())
    simulated = 0
    try:
        frontier = Frontier(replace(lean, objective=Objective.MEMORY), clock)
        lower = float(problem.value_of(frontier.lower_step_time_s, frontier.least))
        while (choice := frontier.take()) is not None:
            found, simulated = lean.simulate(choice), simulated + 1
            if problem.fits(found):
                break
        else:
            return solution
    except OutOfTime:
        return solution
    value = problem.value(found)
    added = Added(
        considered=frontier.considered,
        simulated=simulated,
        lower=min(lower, value),
        uniform_value=inf,
        uniform_lower=inf,
    )
    return replace(
        solution,
        status=Status.FEASIBLE,
        best=found,
        value=value,
        lower=min(solution.lower, value),
        added=added,
    )


def leanest(problem: Problem, clock: Clock) -> Leanest | None:
    """The candidate that needs least, None if there is no candidate; of `NEAR_LEAST` at
    most whose bounds leave it open, as far as there is time."""
    lean = single_sequences(replace(problem, objective=Objective.MEMORY))
    parts = [lean, lean.by_stage()] if free(problem) else [lean]
    best, least, below = None, inf, inf
    for part in parts:
        frontier = Frontier(replace(part, memory_limit_bytes=inf), clock)
        part = replace(part, memory_limit_bytes=0.0)  # each stage as lean as it can be
        for candidate in _nearly_least(part, frontier, least, clock):
            if lean.value(candidate) < least:
                best, least = candidate, lean.value(candidate)
        below = min(below, frontier.least)
    return None if best is None else Leanest(candidate=best, proven=below >= least)


def single_sequences(problem: Problem) -> Problem:
    """*problem* with micro-batches of one sequence, which hold the least, where they
    are free; unless a step has more of those than can be simulated."""
    pins = problem.pins
    if pins.micro_batch is not None or pins.micro_batches is not None:
        return problem
    single = problem.repinned(replace(pins, micro_batch=1))
    return single if length(Space.of(single).trunks) else problem


def _nearly_least(
    problem: Problem, frontier: Frontier, least: float, clock: Clock
) -> Iterator[Candidate]:
    """Candidates by the bounds of their peaks, until none left can be smaller."""
    for number in range(NEAR_LEAST):
        if number and clock.over:
            return
        choice = frontier.take() if frontier.least < least else None
        if choice is None:
            return
        yield (found := problem.simulate(choice))
        least = min(least, problem.value(found))
