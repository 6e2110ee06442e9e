"""Offloading as a dimension of the space, where it is asked for (`--offload auto`).

    compress                in how many bits activations are kept, where that is asked
    optimizer, parameters   each of the four ways is a space of its own     → _ways
    activations             the smallest share α that makes a candidate fit → _Shares

Bytes are linear in α and copies cost time only beyond what a pass hides, so that α is
solved for, not searched (Yuan et al., ATC 2024, section 4.2). A candidate that keeps
everything is never slower than with α: its bound is that of all of them.

The smallest share of kept activations to offload that makes a layout fit.

Bytes on a rank are linear in the ratio α: what is kept falls by α, the buffers of the
copies under way rise by it. So with M(0) and M(1) simulated

    α = (M(0) − limit) / (M(0) − M(1))      on the rank where that is largest

(Yuan et al., ATC 2024, section 4.2: the discrete choices are enumerated, α is solved
for.) Copies cost time only beyond what a pass hides, so that the smallest ratio is the
best one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from math import ceil, inf
from typing import Final

import numpy as np

from costmodel.layout import AS_IT_IS, Columns, Offload, Uniform, spell_out
from costmodel.machine import Machine
from costmodel.simulation import Estimate, estimate
from planner.problem import (
    EXACT,
    WORTHWHILE,
    Candidate,
    Counters,
    Objective,
    Problem,
    Solution,
    Space,
    Status,
    Table,
    length,
    require_consistent,
)
from planner.search.bounds import floor_s, leaf_bounds, rough_s
from planner.search.branch_queue import BranchQueue
from planner.search.search import Clock, Limits
from profiles.arrays import Array
from profiles.errors import InvalidQuestion, OutOfTime
from profiles.models import Job

SEARCHED_BITS: Final = (AS_IT_IS, "8", "4", "2")
STEPS: Final = 1000  # ratios are told in thousandths, rounded up


def smallest_ratio(
    kept_bytes: float, away_bytes: float, limit_bytes: float
) -> float | None:
    """The least α with which a rank that needs *kept_bytes* at α = 0 and *away_bytes*
    at 1 stays within *limit_bytes*; None if even 1 is too little.

    >>> smallest_ratio(100.0, 60.0, 80.0)
    0.5
    """
    if kept_bytes <= limit_bytes:
        return 0.0
    if away_bytes > limit_bytes:
        return None
    exact = (kept_bytes - limit_bytes) / (kept_bytes - away_bytes)
    return min(1.0, ceil(exact * STEPS - 1e-9) / STEPS)


def with_ratio(
    choice: Uniform, job: Job, on: Machine, limit_bytes: float
) -> Uniform | None:
    """*choice* with the smallest ratio by the closed form; None if 1 is too little."""
    kept, away = (_priced(choice, job, on, ratio) for ratio in (0.0, 1.0))
    ratios = [
        smallest_ratio(float(before.secured), float(after.secured), limit_bytes)
        for before, after in zip(kept.memory, away.memory, strict=True)
    ]
    found = [one for one in ratios if one is not None]
    if len(found) < len(ratios):
        return None
    return replace(choice, offload=replace(choice.offload, activations=max(found)))


def _priced(choice: Uniform, job: Job, on: Machine, ratio: float) -> Estimate:
    offload = replace(choice.offload, activations=ratio)
    layout = spell_out(replace(choice, offload=offload), job.graph, job.global_batch)
    return estimate(job, on.cluster, layout, on=on)


MOST: Final = 12  # candidates of each way whose share is solved for
MOST_BRANCHES: Final = 8192  # that are priced


Solve = Callable[[Problem, Limits], Solution]


def over_offloads(problem: Problem, solve: Solve, limits: Limits) -> Solution:
    """The best candidate whatever is offloaded; *solve* searches one way at a time.

    Raises OutOfTime if time passes before any candidate was found to fit.
    """
    together = limits if limits.began_s is not None else limits.begun()
    clock = Clock(limits=together)
    parts, late = [], None
    for way in ways(problem):
        try:
            parts.append(solve(way, together))
        except OutOfTime as error:
            late = error
    if late is not None and not any(part.best for part in parts):
        raise late
    found = _joined(problem, parts, limits, complete=late is None)
    if problem.objective is not Objective.MEMORY and problem.offloads_to is not None:
        for way in ways(problem):
            if clock.over:  # of shares that were not looked at nothing is known
                bare = replace(found, lower=0.0, lower_step_time_s=0.0, complete=False)
                found = replace(bare, status=_status(bare.best, 0.0, bare.value))
                break
            found = _Shares(way, found.value).best(found, clock)
    return replace(found, seconds=clock.seconds)


def ways(problem: Problem) -> Iterator[Problem]:
    """*problem* with each set of states on the host that it may have, none first; or
    with activations kept as they are, and in fewer bits."""
    if problem.free_bits:
        for bits in SEARCHED_BITS:
            kept = replace(problem.offload, compress=bits)
            yield replace(problem, offload=kept, free_bits=False)
        return
    assert problem.offloads_to is not None, "that is asked for"
    share = 1.0 if problem.objective is Objective.MEMORY else 0.0
    for optimizer, parameters in np.ndindex(2, 2):
        for activations in sorted({0.0, share}):
            away = Offload(
                activations=activations,
                optimizer=bool(optimizer),
                parameters=bool(parameters),
                tier=problem.offloads_to,
            )
            way = replace(problem, offload=away, offloads_to=None)
            if not away.anything or _possible(way):
                yield way


def everything_away(problem: Problem) -> Problem:
    """*problem* with all on the host that may be, where it is free; else as it is."""
    if problem.offloads_to is None and not problem.free_bits:
        return problem
    *_, last = ways(replace(problem, objective=Objective.MEMORY))
    return replace(last, objective=problem.objective)


def _possible(problem: Problem) -> bool:
    try:
        require_consistent(problem)
    except InvalidQuestion:
        return False
    return True


def _joined(
    problem: Problem, parts: Sequence[Solution], limits: Limits, *, complete: bool
) -> Solution:
    """The best of several searches, and what is known of all of them."""
    best = min((one.best for one in parts if one.best), key=problem.value, default=None)
    value = inf if best is None else problem.value(best)
    others = [
        one
        for part in parts
        for one in (part.best, *part.runners_up)
        if one is not None and one is not best
    ]
    lower = min((part.lower for part in parts), default=inf) if complete else 0.0
    bigger = [one.too_big for one in parts if one.too_big is not None]
    bigger = [one for one in bigger if problem.value(one) < value * WORTHWHILE]
    return Solution(
        search=parts[0].search,
        status=_status(best, lower, value),
        best=best,
        value=value,
        lower=min(lower, value),
        lower_step_time_s=min(one.lower_step_time_s for one in parts),
        complete=complete and all(one.complete for one in parts),
        counters=_sum([one.counters for one in parts]),
        seconds=sum(one.seconds for one in parts),
        runners_up=tuple(sorted(others, key=problem.value)[: limits.runners_up]),
        too_big=min(bigger, key=_peak_bytes, default=None),
    )


def _sum(counters: Sequence[Counters]) -> Counters:
    return Counters(
        considered=sum(one.considered for one in counters),
        simulated=sum(one.simulated for one in counters),
        by_memory=sum(one.by_memory for one in counters),
        by_value=sum(one.by_value for one in counters),
    )


def _status(best: Candidate | None, lower: float, value: float) -> Status:
    if best is None:
        return Status.INFEASIBLE
    return Status.OPTIMAL if lower >= value * (1 - EXACT) else Status.FEASIBLE


def _peak_bytes(candidate: Candidate) -> float:
    return candidate.estimate.peak_needed_bytes


@dataclass(frozen=True, slots=True)
class _Rows:
    """Candidates that fit with some share away: bounds, and what they may come to."""

    columns: Columns
    bounds: Array
    guesses: Array


class _Shares:
    """The candidates of *problem* that a share of activations away makes fit, and whose
    bounds are below *value*."""

    def __init__(self, problem: Problem, value: float) -> None:
        self.problem, self.space = problem, Space(problem=problem)
        self.lower = inf
        self._rows = self._found(value)

    def best(self, solution: Solution, clock: Clock) -> Solution:
        """*solution*, or a candidate with a share away that is better; with the bound
        of both."""
        rows = self._rows
        if rows is None:
            return replace(solution, lower=min(solution.lower, self.lower))
        found, settled = solution, np.zeros(len(rows.bounds), dtype=bool)
        for row in np.argsort(rows.guesses, kind="stable")[:MOST]:
            if clock.over:
                break
            settled[row] = True
            if rows.bounds[row] < found.value * (1 - EXACT):
                choice = self.space.choice(rows.columns, int(row))
                found = self._tried(choice, found)
        lower = min(self.lower, rows.bounds[~settled].min(initial=inf), found.value)
        lower = min(float(lower), solution.lower)
        status = _status(found.best, lower, found.value)
        return replace(found, lower=lower, status=status)

    def _tried(self, choice: Uniform, solution: Solution) -> Solution:
        """*solution*, or *choice* with the smallest share that fits if that is better;
        counted as simulated, no longer as ruled out by memory."""
        problem, counters = self.problem, solution.counters
        counted = replace(
            counters,
            simulated=counters.simulated + 1,
            by_memory=counters.by_memory - 1,
        )
        solution = replace(solution, counters=counted)
        shared = with_ratio(
            choice, problem.job, problem.machine, problem.memory_limit_bytes
        )
        if shared is None:
            return solution
        candidate = problem.simulate(shared)
        value = problem.value(candidate)
        if not problem.fits(candidate) or value >= solution.value:
            return solution
        others = solution.runners_up
        if solution.best is not None:
            others = (solution.best, *others)
        bigger = solution.too_big
        faster = bigger is not None and problem.value(bigger) < value * WORTHWHILE
        return replace(
            solution,
            best=candidate,
            value=value,
            runners_up=others,
            too_big=bigger if faster else None,
        )

    def _found(self, value: float) -> _Rows | None:
        problem, trunks = self.problem, self.space.trunks
        if not length(trunks):
            return None

        def floors(some: Table) -> Array:
            return np.asarray(problem.value_of(floor_s(problem, some), 0.0))

        rough = np.asarray(problem.value_of(rough_s(problem, trunks), 0.0))
        queue = BranchQueue(trunks, rough, floors, opened=self.space.opened)
        table, _ = queue.take(MOST_BRANCHES, below=value)
        if not length(table):
            return None
        if length(table) == MOST_BRANCHES:
            self.lower = queue.least
        columns = self.space.leaves(table)
        kept, here = _priced_offload(problem, columns)
        large = (here > problem.memory_limit_bytes) & (here < inf)  # inf: no host room
        rows = np.flatnonzero((kept < value) & large)
        if not len(rows):
            return None
        columns, kept, here = columns.take(rows), kept[rows], here[rows]
        away = replace(problem.offload, activations=1.0)
        gone = replace(problem, offload=away)  # whose blocks have prices of their own
        moved, there = _priced_offload(gone, replace(columns, offload=away))
        share = (here - problem.memory_limit_bytes) / np.maximum(here - there, 1.0)
        fits = share <= 1
        if not fits.any():
            return None
        guesses = kept + np.clip(share, 0, 1) * (moved - kept)
        return _Rows(columns.take(fits), kept[fits], guesses[fits])


def _priced_offload(problem: Problem, columns: Columns) -> tuple[Array, Array]:
    """Bounds of the value and of the peak."""
    prices = leaf_bounds(problem, columns)
    seconds, peaks = prices.step_time_s, prices.needed_bytes
    return np.asarray(problem.value_of(seconds, peaks)), peaks
