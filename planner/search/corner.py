"""`fast_fit`: some layout that fits, where time was over before the search had any.

A corner of the space is priced in a tenth of a second, whatever the question's size:
micro-batches of one sequence, 1F1B, every layer recomputed, no context parallelism, as
far as the pins leave that free. Most models that fit at all fit there; how far that is
from the best, nobody knows then.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from planner.problem import Counters, Problem, Solution, Space, Status, length
from planner.search.frontier import Frontier
from planner.search.least_peak import single_sequences

MOST: Final = 4  # layouts of a corner that are simulated


def fast_fit(problem: Problem, search: str) -> Solution | None:
    """The first layout found to fit in a corner of the space; None where none is."""
    corner = _corner(problem)
    if not length(Space.of(corner).trunks):
        return None
    frontier, simulated = Frontier(corner), 0
    found = None
    while found is None and simulated < MOST:
        if (choice := frontier.take()) is None:
            return None
        tried, simulated = corner.simulate(choice), simulated + 1
        found = tried if problem.fits(tried) else None
    if found is None:
        return None
    return Solution(
        search=search,
        status=Status.FEASIBLE,
        best=found,
        value=problem.value(found),
        lower=0.0,
        lower_step_time_s=0.0,
        complete=False,
        counters=Counters(
            considered=frontier.considered,
            simulated=simulated,
            by_memory=frontier.dropped_for_memory,
        ),
        seconds=frontier.clock.seconds,
    )


def _corner(problem: Problem) -> Problem:
    single = single_sequences(problem)
    pins = single.pins
    if pins.cp is None:
        pins = replace(pins, cp=1)
    if pins.recompute is None and pins.recompute_layers is None:
        pins = replace(pins, recompute="full")
    if pins.schedule is None and pins.virtual_stages is None:
        pins = replace(pins, schedule="1f1b")
    return single.repinned(pins)
