"""Which of some layouts of one job `plan` would recommend, had it found just them.

The search's part is to price them all; the last step is
`planner.analysis.robust_choice`'s: of those that nobody can tell from the fastest, the
one whose bad case is best.
"""

from __future__ import annotations

from collections.abc import Sequence

from costmodel.options.pins import Pins
from costmodel.simulation.question import Question
from costmodel.simulation.uncertainty import with_odds
from planner.analysis.robust_choice import LOOKED_AT, prefer
from planner.problem.problem import PROBABILITY, Candidate, Problem
from planner.problem.solution import Counters, Solution, Status


def recommended(questions: Sequence[Question]) -> int:
    """The place of the recommended one of *questions*: layouts that fit, of one job on
    one machine, the fastest estimate first."""
    problem = _problem(questions[0])
    near = [problem.simulate(one.choice) for one in questions[: LOOKED_AT + 1]]
    chosen = prefer(problem, _solution(problem, near)).best
    return next(place for place, one in enumerate(near) if one is chosen)


def _problem(asked: Question) -> Problem:
    choice = asked.choice
    return Problem(
        job=asked.job,
        machine=with_odds(asked.machine, PROBABILITY),
        gpus=choice.gpus,
        pins=Pins(),
        precision=choice.precision,
        gradient_format=choice.gradient_format,
        flash_attention=choice.flash_attention,
        memory_limit_bytes=asked.machine.device.capacity_bytes,
        probability=PROBABILITY,
    )


def _solution(problem: Problem, near: Sequence[Candidate]) -> Solution:
    """Proven, since all were priced."""
    value = problem.value(near[0])
    return Solution(
        search="swept",
        status=Status.OPTIMAL,
        best=near[0],
        value=value,
        lower=value,
        lower_step_time_s=value,
        complete=True,
        counters=Counters(considered=len(near), simulated=len(near)),
        seconds=0.0,
        runners_up=tuple(near[1:]),
    )
