"""A schedule without a flush in its steady state: one step, as long as any other.

A rank goes on from its update to the next step at once; nothing waits for all ranks.
So the steps of a long run are a max-plus linear recurrence, whose rate is its period:
x(k), when the actions of step k start, comes to x(k) = x(k - c) + c * period for some c
(Baccelli et al., Synchronization and Linearity, 1992, section 3.7). Of that

    v = max over i < c of x(k - i) + i * period

is a step after which everything comes again one period later. Where it takes too long
until the steps repeat (two ranks nearly as slow), the slowest action of the last steps
says the period, and v still keeps every order and every wait.

Where ranks take turns on cores, passes go as much faster than priced as there are cores
for those that are at work on average (`processor_sharing.speed`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from costmodel.schedule import Program
from costmodel.timeline.costs import FloatArray, StageCosts, sends_of
from costmodel.timeline.processor_sharing import speed

MOST_STEPS: Final = 48
ALIKE: Final = 1e-12
HALVINGS: Final = 30


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Steady:
    """When actions start and end in their rank's own step, [pp, actions], as that step
    begins, by rank, and how long all of them are."""

    start_s: FloatArray
    end_s: FloatArray
    begin_s: FloatArray
    period_s: float


def steady(
    program: Program, costs: StageCosts, durations: FloatArray, behind_s: FloatArray
) -> Steady:
    """A step in which passes take *durations*; *behind_s*, by rank, is what follows
    its last one: first the reduction of gradients, then what remains until its next
    pass, [2, pp]."""
    if costs.turns == 1:
        return _alone(program, costs, durations, behind_s)
    pp = program.shape.pp
    low, high = 1 / min(costs.turns, pp), 1.0  # what passes take, over their price
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        found = _alone(program, costs, middle * durations, behind_s)
        at_work = middle * durations.sum() / found.period_s if found.period_s else 1.0
        slower = 1 / speed(costs.turns, costs.messages, pp, max(at_work, 1.0))
        low, high = (middle, high) if slower > middle else (low, middle)
    return _alone(program, costs, high * durations, behind_s)


def _alone(
    program: Program, costs: StageCosts, durations: FloatArray, behind_s: FloatArray
) -> Steady:
    """The same with a core for every rank."""
    run = _Run(program, costs, durations, behind_s)
    steps: list[FloatArray] = []
    states: list[FloatArray] = []
    while True:
        steps.append(run.step())
        states.append(run.state)
        every = _repeats(states)
        if every or len(steps) == MOST_STEPS:
            break
    every = every or MOST_STEPS // 2
    period_s = float((states[-1] - states[-1 - every]).max()) / every
    ago = enumerate(reversed(steps[-1 - every : -1]))
    start = np.maximum.reduce([one + number * period_s for number, one in ago])
    start_s = np.empty_like(durations)
    start_s.ravel()[program.order] = start
    end_s = start_s + durations
    begin_s = run.left(end_s[:, -1]) - period_s
    first_s = min(float(begin_s.min()), float(start_s.min()))
    return Steady(
        start_s=start_s - first_s,
        end_s=end_s - first_s,
        begin_s=begin_s - first_s,
        period_s=period_s,
    )


def _repeats(states: list[FloatArray]) -> int:
    """After how many steps all comes again, equally much later; 0: not yet."""
    last = states[-1]
    for every in range(1, len(states) // 2 + 1):
        later = last - states[-1 - every]
        if np.ptp(later) <= ALIKE * max(float(last.max()), 1e-300):
            return every
    return 0


class _Run:
    """Step after step of all ranks, each from when it was ready."""

    def __init__(
        self,
        program: Program,
        costs: StageCosts,
        durations: FloatArray,
        behind_s: FloatArray,
    ) -> None:
        self.program, self.behind_s = program, behind_s
        self.together = list(costs.together)
        shape = program.shape
        self.ready_s = [0.0] * shape.pp
        self._link_free_s = [0.0] * (program.no_link + 1)
        self._links = sorted(set(program.links.tolist()) - {program.no_link})
        sends = sends_of(costs, shape.copies)[program.ordered_rows]
        sends = np.where(program.links == program.no_link, 0.0, sends)
        nothing = [0.0] * (1 + len(program.ranks))
        self._arrived_s = [nothing] * (1 + max(program.ago, default=0))
        self._actions = list(
            zip(
                program.ranks,
                program.awaits,
                program.ago or [0] * len(program.ranks),
                program.links.tolist(),
                durations.ravel()[program.order].tolist(),
                sends.tolist(),
                strict=True,
            )
        )

    @property
    def state(self) -> FloatArray:
        """All that the times of the next steps hang on."""
        arrived = (each[1:] for each in self._arrived_s)
        links = [self._link_free_s[link] for link in self._links]
        return np.concatenate([self.ready_s, links, *arrived], dtype=np.float64)

    def step(self) -> FloatArray:
        """When the actions of the next step start, in the program's order."""
        arrived_s = [0.0]
        self._arrived_s = [arrived_s, *self._arrived_s[:-1]]
        free_s, link_free_s = self.ready_s, self._link_free_s
        starts = []
        for rank, awaited, ago, link, duration_s, send_s in self._actions:
            start_s = max(free_s[rank], self._arrived_s[ago][awaited])
            starts.append(start_s)
            free_s[rank] = end_s = start_s + duration_s
            link_free_s[link] = sent_s = max(link_free_s[link], end_s) + send_s
            arrived_s.append(sent_s)
        self.ready_s = self.left(np.array(free_s)).tolist()
        return np.array(starts)

    def left(self, end_s: FloatArray) -> FloatArray:
        """When each rank goes on whose last pass has ended at *end_s*: those that sum
        gradients of what they share have waited for each other."""
        reduced_s, rest_s = end_s + self.behind_s[0], self.behind_s[1]
        if self.together:
            reduced_s[self.together] = reduced_s[self.together].max()
        return np.asarray(reduced_s + rest_s)
