"""The schedules of many layouts run, those that can side by side (`waves`).

Only where no transfer finds its link busy: there the order of sends decides, and each
pipeline is run for itself.

Many pipelines run side by side: one array operation a wave, not a step an action.

A wave is what could start at one time if each action took 1: no action of it awaits
another one of it. The first waves of all pipelines are one array, then the second …

    end(a) = max(end of the action before a on its rank, end it awaits + arrival)
             + duration

as `timeline` has it, action by action, to the last bit.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

import numpy as np

from costmodel.schedule import IntArray, Program, only_whole, unit_times
from costmodel.timeline.costs import FloatArray, StageCosts
from costmodel.timeline.timeline import (
    Timeline,
    arrivals_of,
    contends,
    durations_of,
    ended,
    passed,
    run,
)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Waves:
    """The wave of each action of a program, in its order, and the number of the action
    before it on its rank, counted from 1 (0 of the first)."""

    wave: IntArray
    before: IntArray
    awaited: IntArray


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Steps:
    """A pipeline to run: in its program's order, how long each action takes, and how
    long what it awaits is on its way."""

    waves: Waves
    durations: FloatArray
    arrivals: FloatArray


def waves_of(program: Program) -> Waves | None:
    """The waves of a program; None where its order is not theirs."""
    if not only_whole(program.rows, program.shape):
        return None
    order, awaited = program.order, program.awaited
    wave = unit_times(program.rows)[order]
    if np.any(wave[1:] < wave[:-1]):
        return None
    number = np.empty(order.size, dtype=np.int64)
    number[order] = np.arange(1, order.size + 1)
    first = order % program.rows.shape[1] == 0
    before = np.where(first, 0, number[order - 1])
    waits = awaited > 0
    if np.any(wave[awaited[waits] - 1] >= wave[waits]):
        return None
    return Waves(wave=wave, before=before, awaited=awaited)


def ends_together(pipelines: Sequence[Steps]) -> list[FloatArray]:
    """When each action of each pipeline ends, in its order, after a 0."""
    sizes = [_widths(steps.waves) for steps in pipelines]
    width = np.zeros(max(map(len, sizes)), dtype=np.int64)
    for own in sizes:
        width[: len(own)] += own
    bounds = np.concatenate(([1], 1 + width.cumsum()))  # place 0 ends at 0
    total = int(bounds[-1])
    before, awaited = (np.empty(total, dtype=np.int64) for _ in range(2))
    durations, arrivals = (np.empty(total) for _ in range(2))
    places, free = [], bounds[:-1].copy()
    for steps, own in zip(pipelines, sizes, strict=True):
        waves = steps.waves
        shift = free[: len(own)] - (own.cumsum() - own)
        place = np.concatenate(([0], shift[waves.wave] + np.arange(waves.wave.size)))
        free[: len(own)] += own
        here = place[1:]
        before[here], awaited[here] = place[waves.before], place[waves.awaited]
        durations[here], arrivals[here] = steps.durations, steps.arrivals
        places.append(place)
    ends = _swept(bounds.tolist(), before, awaited, durations, arrivals)
    return [ends[place] for place in places]


def _widths(waves: Waves) -> IntArray:
    """How many actions each wave has."""
    return np.bincount(waves.wave)


def _swept(
    bounds: Sequence[int],
    before: IntArray,
    awaited: IntArray,
    durations: FloatArray,
    arrivals: FloatArray,
) -> FloatArray:
    """The ends, wave after wave."""
    ends = np.zeros(len(durations))
    for first, last in pairwise(bounds):
        wave = slice(first, last)
        ready = ends[awaited[wave]]
        ready += arrivals[wave]
        start = np.maximum(ends[before[wave]], ready, out=ready)
        np.add(start, durations[wave], out=ends[wave])
    return ends


MOST_TOGETHER: Final = 1_000_000  # actions, some 100 bytes each


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Asked:
    """A pipeline to run, and its number among those asked."""

    number: int
    program: Program
    costs: StageCosts
    durations: FloatArray
    waves: Waves | None

    @property
    def steps(self) -> Steps:
        assert self.waves is not None, "others run alone"
        return Steps(
            waves=self.waves,
            durations=self.durations.ravel()[self.program.order],
            arrivals=arrivals_of(self.program, self.costs),
        )


def simulate_together(
    asked: Iterable[tuple[Program, StageCosts]],
) -> Iterator[tuple[int, Timeline]]:
    """The timeline of each, with its number among those asked, in any order.

    Costs are taken to be those of their program's stages and ranks.
    """
    waiting: list[_Asked] = []
    actions = 0
    known: dict[Program, Waves | None] = {}
    for number, (program, costs) in enumerate(asked):
        durations = durations_of(program, costs)
        waves = None
        alike = program.shape.pp > 1 and costs.turns == 1
        if alike and not contends(program, costs, durations):
            if program not in known:
                known[program] = waves_of(program)
            waves = known[program]
        one = _Asked(
            number=number,
            program=program,
            costs=costs,
            durations=durations,
            waves=waves,
        )
        if waves is None:
            yield number, ended(program, costs, *run(program, costs, durations))
            continue
        waiting.append(one)
        actions += program.rows.size
        if actions >= MOST_TOGETHER:
            yield from _side_by_side(waiting)
            waiting, known, actions = [], {}, 0
    if waiting:
        yield from _side_by_side(waiting)


def _side_by_side(asked: Sequence[_Asked]) -> Iterator[tuple[int, Timeline]]:
    steps = [one.steps for one in asked]
    for one, own, ends in zip(asked, steps, ends_together(steps), strict=True):
        passes = passed(one.program, ends, own.arrivals)
        yield one.number, ended(one.program, one.costs, *passes)
