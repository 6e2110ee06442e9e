"""Why there is no layout: the tightest constraint, and the nearest change that helps.

nothing is legal    the smallest raise of the batch, or the nearest number of GPUs
nothing is executed what the runtime lacks, and the same raise or number
nothing fits        the smallest peak there is; a pin to drop, or more GPUs
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from math import inf

from costmodel.legality import MOST_PASSES
from costmodel.support import refusals
from costmodel.uniform import Uniform
from planner.frontier import Frontier
from planner.pinned import layout_pins
from planner.problem import Candidate, Objective, Problem
from planner.solution import Solution
from planner.space import Space
from planner.table import length
from planner.words import choice_words
from profiles.errors import Infeasible
from profiles.units import format_bytes

MULTIPLES = (2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128)
MOST_GPUS = 131_072  # more than any cluster joins
FARTHEST_COUNT = 256  # how many fewer or more GPUs are tried


def diagnose(problem: Problem) -> Infeasible:
    """What to say where no layout of *problem* is legal, or none fits."""
    constraint = constraint_of(problem)
    if constraint.startswith("memory"):
        return _infeasible(constraint, next(_fitting_changes(problem), None))
    if constraint.startswith("size"):
        return _infeasible(constraint, "a smaller batch (--global-batch)")
    return _infeasible(constraint, next(_legal_changes(problem), None))


def diagnose_search(problem: Problem, solution: Solution) -> Infeasible:
    """The same where a search found nothing, which may be its own doing: a baseline
    looks at few layouts."""
    if solution.complete:
        return diagnose(problem)
    found = _fitting(problem)
    if found is None:
        return diagnose(problem)
    seen = solution.counters.considered
    tried = f"{seen:,} layouts, none of which fits" if seen else "no layout at all"
    return _infeasible(
        f"search: {solution.search} looks at {tried}; others keep the same pins",
        f"--search branch-and-bound: {found}",
    )


def constraint_of(problem: Problem) -> str:
    """What keeps *problem* from having a layout, in words that start with its kind:
    divisibility, size, support or memory."""
    if length(Space(problem=problem).branches):
        return _too_little_memory(problem)
    job = problem.job
    if length(Space(problem=replace(problem, executable=False)).branches):
        return _not_executed(problem)
    if length(Space(problem=problem).degrees):
        return (
            f"size: a batch of {job.global_batch} on {problem.gpus} GPUs takes more "
            f"than {MOST_PASSES:,} passes a step in every layout"
        )
    return (
        f"divisibility: {job.model} ({job.graph.body} layers), sequences of "
        f"{job.seq_len} and a batch of {job.global_batch} do not split over "
        f"{problem.gpus} GPUs"
    )


def _not_executed(problem: Problem) -> str:
    job = problem.job
    alone = Uniform(
        precision=problem.precision,
        gradient_format=problem.gradient_format,
        flash_attention=problem.flash_attention,
        offload=problem.offload,
    )
    reasons = refusals(alone, job) or ["no combination of degrees is left"]
    return (
        f"support: {job.model} has layouts on {problem.gpus} GPUs, none of which "
        f"`execute` carries out ({'; '.join(reasons)})"
    )


def _legal_changes(problem: Problem) -> Iterator[str]:
    batch = -(-problem.job.global_batch // problem.gpus) * problem.gpus
    raised = replace(problem, job=replace(problem.job, global_batch=batch))
    if length(Space(problem=raised).branches):
        yield f"a batch of {batch} (--global-batch {batch})"
    for apart in range(1, FARTHEST_COUNT):
        for gpus in (problem.gpus - apart, problem.gpus + apart):
            if gpus >= 1 and length(Space(problem=replace(problem, gpus=gpus)).degrees):
                yield f"{gpus} GPUs (--gpus {gpus})"


def _too_little_memory(problem: Problem) -> str:
    device = problem.machine.device
    smallest = leanest(problem)
    assert smallest is not None, "something is legal"
    peak = format_bytes(smallest.estimate.peak_memory_bytes)
    return (
        f"memory: the smallest peak of any layout is {peak} "
        f"({choice_words(smallest.choice, problem.job.global_batch)}), "
        f"{device.name} offers {_offered(problem)}"
    )


def _offered(problem: Problem) -> str:
    """The capacity, and up to what an estimate is likely enough to fit."""
    capacity = problem.machine.device.capacity_bytes
    limit = problem.memory_limit_bytes
    if not limit < capacity:
        return format_bytes(limit)
    return (
        f"{format_bytes(capacity)}, and what is estimated at {format_bytes(limit)} "
        f"fits with probability {problem.probability:g}"
    )


def _fitting_changes(problem: Problem) -> Iterator[str]:
    for name in layout_pins(problem.pins):
        loose = replace(problem, pins=replace(problem.pins, **{name: None}))
        found = _fitting(loose)
        if found:
            yield f"leave --{name.replace('_', '-')} out: {found}"
    most = problem.machine.cluster.gpus or MOST_GPUS
    for multiple in MULTIPLES:
        gpus = problem.gpus * multiple
        if gpus <= most and (found := _fitting(replace(problem, gpus=gpus))):
            yield f"{gpus} GPUs (--gpus {gpus}): {found}"


def _fitting(problem: Problem) -> str | None:
    """The leanest layout of *problem* in words, if it fits."""
    found = leanest(problem)
    if found is None or not problem.fits(found):
        return None
    peak = format_bytes(found.estimate.peak_memory_bytes)
    words = choice_words(found.choice, problem.job.global_batch)
    return f"{words} needs {peak}"


def leanest(problem: Problem) -> Candidate | None:
    """The candidate with the smallest peak, None if there is no candidate.

    Micro-batches of one sequence hold the least: where they are free, others need not
    be looked at.
    """
    pins = problem.pins
    if pins.micro_batch is None and pins.micro_batches is None:
        pins = replace(pins, micro_batch=1)
    lean = replace(
        problem, objective=Objective.MEMORY, memory_limit_bytes=inf, pins=pins
    )
    choice = Frontier(lean).take()
    return None if choice is None else problem.simulate(choice)


def _infeasible(constraint: str, nearest: str | None) -> Infeasible:
    hint = f"nearest that works: {nearest}" if nearest else "nothing near works"
    return Infeasible(
        f"no layout: {constraint}; {hint}", constraint=constraint, nearest=nearest
    )
