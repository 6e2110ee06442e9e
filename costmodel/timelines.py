"""The schedules of many layouts run, those that can side by side (`waves`).

Only where no transfer finds its link busy: there the order of sends decides, and each
pipeline is run for itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from costmodel.program import Program
from costmodel.stage_costs import FloatArray, StageCosts
from costmodel.timeline import (
    Timeline,
    arrivals_of,
    contends,
    durations_of,
    ended,
    passed,
    run,
)
from costmodel.waves import Steps, Waves, ends_together, waves_of

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
