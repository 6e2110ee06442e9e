"""The schedules of many layouts run side by side: an array operation a wave, not a step
an action.

A wave is what could start at one time if each action took 1: no action of it awaits
another one of it. The first waves of all pipelines are one array, then the second …

    end(a) = max(end of the action before a on its rank, end it awaits + arrival)
             + duration

as `timeline` has it, action by action, to the last bit; but only where no transfer
finds its link busy. There the order of sends decides, and each pipeline is run for
itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import Final

import numpy as np

from costmodel.schedule import COMPUTE, IntArray, Kind, Program, only_whole, unit_times
from costmodel.timeline.costs import FloatArray, StageCosts, sends_of
from costmodel.timeline.timeline import Timeline, before, durations_of, ended, run

MOST_TOGETHER: Final = 1_000_000  # actions, some 100 bytes each


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Waves:
    """The wave of each action of a program, in its order, and the number of the action
    before it on its rank, counted from 1 (0 of the first)."""

    wave: IntArray
    before: IntArray
    widths: IntArray  # how many actions each wave has


@lru_cache(maxsize=16)
def waves_of(program: Program) -> Waves | None:
    """The waves of a program; None where its order is not theirs."""
    if not only_whole(program.rows, program.shape):
        return None
    order, awaited = program.order, program.awaited
    wave = unit_times(program.rows)[order]
    waits = awaited > 0
    if np.any(wave[1:] < wave[:-1]) or np.any(wave[awaited[waits] - 1] >= wave[waits]):
        return None
    number = np.empty(order.size, dtype=np.int64)
    number[order] = np.arange(1, order.size + 1)
    first = order % program.rows.shape[1] == 0
    return Waves(
        wave=wave,
        before=np.where(first, 0, number[order - 1]),
        widths=np.bincount(wave),
    )


_Asked = tuple[int, Program, StageCosts, FloatArray, Waves]


def simulate_together(
    asked: Iterable[tuple[Program, StageCosts]],
) -> Iterator[tuple[int, Timeline]]:
    """The timeline of each, with its number among those asked, in any order."""
    waiting: list[_Asked] = []
    actions = 0
    for number, (program, costs) in enumerate(asked):
        durations = durations_of(program, costs)
        alike = program.shape.pp > 1 and costs.turns == 1
        free = alike and not _contends(program, costs, durations)
        waves = waves_of(program) if free else None
        if waves is None:
            yield number, ended(program, costs, *run(program, costs, durations))
            continue
        waiting.append((number, program, costs, durations, waves))
        actions += program.rows.size
        if actions >= MOST_TOGETHER:
            yield from _side_by_side(waiting)
            waiting, actions = [], 0
    if waiting:
        yield from _side_by_side(waiting)


def _contends(program: Program, costs: StageCosts, durations: FloatArray) -> bool:
    """Whether a transfer can find its link busy.

    Between two sends of a rank lies at least the pass that sends the second: where no
    transfer is longer than the shortest of those, none does.
    """
    rows = program.rows
    longest = sends_of(costs, program.shape.copies)[rows].max(axis=1)
    send = (rows >= 0) & (rows // program.shape.slots != COMPUTE.index(Kind.W))
    shortest = np.where(send, durations, np.inf).min(axis=1)
    return bool(np.any(longest > shortest))


def _side_by_side(asked: Sequence[_Asked]) -> Iterator[tuple[int, Timeline]]:
    width = np.zeros(max(len(waves.widths) for *_, waves in asked), dtype=np.int64)
    for *_, waves in asked:
        width[: len(waves.widths)] += waves.widths
    bounds = np.concatenate(([1], 1 + width.cumsum()))  # place 0 ends at 0
    previous, awaited = (np.empty(bounds[-1], dtype=np.int64) for _ in range(2))
    durations, arrivals = (np.empty(bounds[-1]) for _ in range(2))
    places, free = [], bounds[:-1].copy()
    for _, program, costs, taken, waves in asked:
        own = waves.widths
        shift = free[: len(own)] - (own.cumsum() - own)
        place = np.concatenate(([0], shift[waves.wave] + np.arange(waves.wave.size)))
        free[: len(own)] += own
        here = place[1:]
        previous[here], awaited[here] = place[waves.before], place[program.awaited]
        durations[here] = taken.ravel()[program.order]
        arrivals[here] = sends_of(costs, program.shape.copies)[program.awaited_rows]
        places.append(place)
    ends, readies = (np.zeros(len(durations)) for _ in range(2))
    for first, last in pairwise(bounds.tolist()):
        wave = slice(first, last)
        ready = np.add(ends[awaited[wave]], arrivals[wave], out=readies[wave])
        np.add(np.maximum(ends[previous[wave]], ready), durations[wave], out=ends[wave])
    for place, (number, program, costs, *_) in zip(places, asked, strict=True):
        end, ready = (np.empty(program.rows.shape) for _ in range(2))
        end.ravel()[program.order] = ends[place[1:]]
        ready.ravel()[program.order] = readies[place[1:]]
        start = np.maximum(before(end), ready)
        yield number, ended(program, costs, start, end)
