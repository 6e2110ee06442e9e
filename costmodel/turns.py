"""Ranks that are more than the cores they run on, and take turns there.

A pass is priced as when every rank computes (`profiles.measure.clock`), *turns* ranks
on each core. As long as some of p pipeline ranks wait for others, those that compute
have more of the cores, up to one each:

    speed(a) = min(turns, p / a)    with a of p at work

so that nothing is lost to a bubble that somebody else can fill (processor sharing;
Kleinrock, Queueing Systems II, 1976, section 4.4).
"""

from __future__ import annotations

from collections import deque
from math import inf
from typing import Any

import numpy as np
from numpy.typing import NDArray

from costmodel.program import Program
from costmodel.stage_costs import FloatArray

Array = NDArray[Any]


def speed(turns: float, pp: int, at_work: int) -> float:
    """How many times faster than priced *at_work* of *pp* pipeline ranks compute.

    >>> [speed(2.0, 4, at_work) for at_work in (4, 3, 2, 1)]
    [1.0, 1.3333333333333333, 2.0, 2.0]
    """
    return min(turns, pp / at_work)


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
    program: Program, sends: FloatArray, durations: FloatArray, turns: float
) -> tuple[FloatArray, FloatArray]:
    """Start and end of each action, [pp, actions], of *durations* as priced; *sends*
    are seconds of what each row sends, which waits for its link."""
    pp = program.shape.pp
    left_s = durations.ravel()[program.order].tolist()
    sends_s, links = sends[program.ordered_rows].tolist(), program.links.tolist()
    link_free_s = [0.0] * (program.no_link + 1)
    streams: list[deque[int]] = [deque() for _ in range(pp)]
    for number, rank in enumerate(program.ranks):
        streams[rank].append(number)
    start_s, end_s = ([inf] * len(left_s) for _ in range(2))
    arrived_s = [0.0, *end_s]  # for actions that await nothing, at once
    going: list[int] = []  # the actions at work, one of a rank
    now_s = 0.0
    while True:
        idle = [s for s in streams if s and start_s[s[0]] == inf]
        ready = {s[0]: arrived_s[program.awaits[s[0]]] for s in idle}
        for number, ready_s in ready.items():
            if ready_s <= now_s:
                start_s[number] = now_s
                going.append(number)
        later_s = min((at_s for at_s in ready.values() if at_s > now_s), default=inf)
        if not going and later_s == inf:
            break
        pace = speed(turns, pp, len(going)) if going else 1.0
        first = min(going, key=left_s.__getitem__, default=None)
        done_s = inf if first is None else now_s + left_s[first] / pace
        passed_s = min(done_s, later_s) - now_s
        for number in going:
            left_s[number] -= passed_s * pace
        now_s += passed_s
        if first is not None and done_s <= later_s:
            end_s[first] = now_s
            sent_s = max(now_s, link_free_s[links[first]]) + sends_s[first]
            arrived_s[first + 1] = link_free_s[links[first]] = sent_s
            going.remove(first)
            streams[program.ranks[first]].popleft()
    return _in_streams(program, start_s), _in_streams(program, end_s)


def _in_streams(program: Program, ordered_s: list[float]) -> FloatArray:
    found: FloatArray = np.empty(program.rows.shape)
    found.ravel()[program.order] = ordered_s
    return found
