"""What recipes share: rungs of candidates, tried in order until something fits.

A recipe fixes some dimensions and says in which order the others are tried. It chooses
among the candidates of the problem, so that pins, what `execute` carries out and what
is legal hold as they do for every search; where a dimension is pinned, the pin stands
in place of the recipe's rule.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from costmodel.columns import Columns
from costmodel.uniform import Uniform
from planner.floors import leaf_bounds
from planner.problem import Problem
from planner.search import Clock, Limits
from planner.shortlist import Shortlist
from planner.solution import Counters, Solution, Status
from planner.space import Space
from planner.table import Array, length


@dataclass(frozen=True, slots=True, kw_only=True)
class Rung:
    """Candidates in the order of preference. The first that fits is taken, or where
    *all* are tried the best."""

    columns: Columns
    all: bool = False


def follow(
    name: str, problem: Problem, limits: Limits, rungs: Iterable[Rung]
) -> Solution:
    """The answer of the first rung that has one: a layout, and no bound.

    `considered` counts what the recipe looked at. What its closed form says cannot fit
    is not simulated.

    Raises OutOfTime if time passes before any candidate was found to fit.
    """
    clock = Clock(limits=limits)
    shortlist = Shortlist(problem, limits.runners_up)
    considered = by_memory = 0
    for rung in rungs:
        if clock.over or shortlist.best is not None:
            break
        if not len(rung.columns):
            continue
        peaks = leaf_bounds(problem, rung.columns).needed_bytes
        fits = peaks <= problem.memory_limit_bytes
        considered += len(rung.columns)
        by_memory += int((~fits).sum())
        _climb(rung, np.flatnonzero(fits), shortlist, clock)
    if shortlist.best is None and clock.over:
        raise clock.out_of_time(considered)
    runners_up = shortlist.runners_up(clock)
    found = shortlist.simulated + by_memory
    return unproven(
        name,
        shortlist,
        clock,
        Counters(
            considered=max(considered, found),
            simulated=shortlist.simulated,
            by_memory=by_memory,
            by_value=max(considered - found, 0),
        ),
        runners_up=runners_up,
    )


def unproven(
    name: str,
    shortlist: Shortlist,
    clock: Clock,
    counters: Counters,
    runners_up: tuple[Any, ...] = (),
) -> Solution:
    """The best of *shortlist* as a solution that says nothing of other layouts."""
    best = shortlist.best
    return Solution(
        search=name,
        status=Status.FEASIBLE if best else Status.INFEASIBLE,
        best=best,
        value=shortlist.value,
        lower=0.0,
        lower_step_time_s=0.0,
        complete=False,
        counters=counters,
        seconds=clock.seconds,
        runners_up=runners_up,
    )


def keeping(problem: Problem, **rule: Any) -> Columns | None:
    """Candidates that keep the problem's pins and, where it has none, the *rule*'s;
    None if there are none."""
    pins = problem.pins
    free = {key: value for key, value in rule.items() if getattr(pins, key) is None}
    space = Space(problem=replace(problem, pins=replace(pins, **free)))
    branches = space.branches
    return space.leaves(branches) if length(branches) else None


def recomputes(problem: Problem) -> tuple[str, ...]:
    """Nothing, and where nothing fits everything; as pinned."""
    pinned = problem.pins.recompute
    return ("none", "full") if pinned is None else (pinned,)


def ordered(columns: Columns, *keys: Array) -> Columns:
    """Rows by *keys*, the first counting most; small before large."""
    last = (columns.zero_group * -1, columns.sequence_parallel * -1)
    return columns.take(np.lexsort((*last, *reversed(keys))))


def largest_first(columns: Columns) -> Columns:
    """The largest micro-batch first."""
    return ordered(columns, -columns.micro_batch)


def choice_of(problem: Problem, columns: Columns, row: int) -> Uniform:
    """One row, with what no column holds."""
    return Space(problem=problem).choice(columns, row)


def _climb(rung: Rung, rows: Array, shortlist: Shortlist, clock: Clock) -> None:
    for row in rows:
        if clock.over:
            return
        shortlist.simulate(choice_of(shortlist.problem, rung.columns, int(row)))
        clock.tell(shortlist.simulated, shortlist.value, 0.0)
        if shortlist.best is not None and not rung.all:
            return
