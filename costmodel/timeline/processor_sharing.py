"""Ranks that are more than the cores they run on, and take turns there.

A pass is priced as when every rank computes (`profiles.measure.timing.clock`), *turns*
ranks on each core. As long as some of p pipeline ranks wait for others, those that
compute have more of the cores, up to one each:

    speed(a) = min(turns, p / a)    with a of p at work

so that nothing is lost to a bubble that somebody else can fill (processor sharing;
Kleinrock, Queueing Systems II, 1976, section 4.4). What of a pass is messages is no
faster with more of the cores: two ranks alone on two cores wait for each other as long
as amid others (`docs/cost-model.md`).
"""

from __future__ import annotations

from collections import deque
from math import inf

import numpy as np

from costmodel.schedule import Program
from costmodel.timeline.costs import FloatArray
from profiles.arrays import Array


def speed(turns: float, messages: float, pp: int, at_work: float) -> float:
    """How many times faster than priced *at_work* of *pp* pipeline ranks get on, whose
    passes are *messages* to that share.

    >>> [speed(2.0, 0.0, 4, at_work) for at_work in (4, 3, 2, 1)]
    [1.0, 1.3333333333333333, 2.0, 2.0]
    >>> speed(2.0, 0.5, 4, 1)
    1.3333333333333333
    """
    return 1 / ((1 - messages) / min(turns, pp / at_work) + messages)


def shared_bound_s(
    makespan_s: Array, busy_s: Array, *, turns: float, pp: Array
) -> Array:
    """At least the seconds of a pipeline whose ranks take turns.

    *makespan_s* is a bound of the same with a core for everybody, *busy_s* what a rank
    is busy on average: no pass is faster than one that is alone, and all together they
    go p times as fast as priced.
    """
    if turns == 1.0:
        return makespan_s
    return np.maximum(makespan_s / np.minimum(turns, pp), busy_s)


def run_in_turns(
    program: Program,
    sends: FloatArray,
    durations: FloatArray,
    turns: float,
    messages: float,
) -> tuple[FloatArray, FloatArray]:
    """Start and end of each action, [pp, actions], of *durations* as priced, to the
    share *messages*; *sends* are seconds of what each row sends beside them, which
    waits for its link."""
    run, pp = _Run(program, sends, durations), program.shape.pp
    while True:
        comes_s = run.begin()
        if not run.going:
            if comes_s == inf:
                return run.in_streams(run.start_s), run.in_streams(run.end_s)
            run.now_s = comes_s
            continue
        pace = speed(turns, messages, pp, len(run.going))
        first = min(run.going, key=run.left_s.__getitem__)
        ends_s = run.now_s + run.left_s[first] / pace
        run.compute(min(ends_s, comes_s), pace)
        if ends_s <= comes_s:
            run.end(first)


class _Run:
    """Where all ranks are at `now_s`; actions by their numbers in the program's order,
    those at work in `going`."""

    def __init__(
        self, program: Program, sends: FloatArray, durations: FloatArray
    ) -> None:
        self.program, self.now_s = program, 0.0
        self.left_s: list[float] = durations.ravel()[program.order].tolist()
        self.start_s, self.end_s = ([inf] * len(self.left_s) for _ in range(2))
        self.going: list[int] = []
        self._arrived_s = [0.0, *self.end_s]  # for actions that await nothing, at once
        self._sends_s = sends[program.ordered_rows].tolist()
        self._links = program.links.tolist()
        self._link_free_s = [0.0] * (program.no_link + 1)
        self._streams: list[deque[int]] = [deque() for _ in range(program.shape.pp)]
        for number, rank in enumerate(program.ranks):
            self._streams[rank].append(number)

    def begin(self) -> float:
        """Begin what is ready; the next time at which what is on its way arrives."""
        comes_s = inf
        for stream in self._streams:
            if not stream or self.start_s[stream[0]] < inf:
                continue
            ready_s = self._arrived_s[self.program.awaits[stream[0]]]
            if ready_s <= self.now_s:
                self.start_s[stream[0]] = self.now_s
                self.going.append(stream[0])
            else:
                comes_s = min(comes_s, ready_s)
        return comes_s

    def compute(self, until_s: float, pace: float) -> None:
        """Go on with everything that is at work."""
        for number in self.going:
            self.left_s[number] -= (until_s - self.now_s) * pace
        self.now_s = until_s

    def end(self, number: int) -> None:
        """That was its last; what it sends is on its way."""
        link = self._links[number]
        sent_s = max(self.now_s, self._link_free_s[link]) + self._sends_s[number]
        self._arrived_s[number + 1] = self._link_free_s[link] = sent_s
        self.end_s[number] = self.now_s
        self.going.remove(number)
        self._streams[self.program.ranks[number]].popleft()

    def in_streams(self, ordered_s: list[float]) -> FloatArray:
        """By rank and place in its stream."""
        found: FloatArray = np.empty(self.program.rows.shape)
        found.ravel()[self.program.order] = ordered_s
        return found
