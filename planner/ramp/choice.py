"""The plan over a whole ramp, not only at its end.

Layouts are planned at the first batch, at two between and at the last, best and
runners-up of each. Every one is priced at every batch that it can run: micro-batches
come and go, and dp × micro-batch has to divide the batch. The one that trains all of
the tokens soonest is recommended; where phases of several save more than 2 % of the
time, stops between them counted, the layout of the longest phase is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from math import inf

from costmodel.simulation import answers
from costmodel.training_run import BatchRamp, Ramped
from planner.problem import Candidate, Problem, Solution, Status, simulate
from planner.ramp.phases import Phase, phases
from profiles.errors import Contradiction, MeshwrightError
from profiles.units import DAY_S

BETWEEN = 2  # batches of the ramp that are planned for, beside its ends
MOST_LAYOUTS = 16
WORTHWHILE = 0.98  # of the days of one layout: phases that take less are recommended


@dataclass(frozen=True, kw_only=True)
class OverRamp:
    """*layouts* at the last batch, with their steps' seconds at each batch; `whole` is
    the number of the one that is soonest alone (None: none runs every batch)."""

    ramp: BatchRamp
    layouts: tuple[Candidate, ...]
    times_s: tuple[dict[int, float], ...]
    steps: dict[int, float]
    replan_s: float
    phases: tuple[Phase, ...]

    def seconds_of(self, layout: int) -> float:
        own = self.times_s[layout]
        if not self.steps.keys() <= own.keys():
            return inf
        return sum(count * own[one] for one, count in self.steps.items())

    @property
    def whole(self) -> int | None:
        numbers = range(len(self.layouts))
        best = min(numbers, key=self.seconds_of, default=None)
        return None if best is None or self.seconds_of(best) == inf else best

    @property
    def days(self) -> float | None:
        """Of one layout, where one runs every batch."""
        return None if self.whole is None else self.seconds_of(self.whole) / DAY_S

    @property
    def days_in_phases(self) -> float:
        trained_s = sum(one.seconds for one in self.phases)
        return (trained_s + self.replans_s) / DAY_S

    @property
    def replans_s(self) -> float:
        return (len(self.phases) - 1) * self.replan_s

    @property
    def in_phases(self) -> bool:
        """Whether phases are recommended."""
        return self.days is None or self.days_in_phases < WORTHWHILE * self.days

    @property
    def chosen(self) -> int:
        """The layout that is recommended, by its number."""
        if self.whole is not None and not self.in_phases:
            return self.whole
        return max(self.phases, key=lambda one: one.seconds).layout

    def ramped(self) -> Ramped:
        """The run that is recommended."""
        times_s = dict(self.times_s[self.chosen])
        for one in self.phases if self.in_phases else ():
            times_s |= {batch: self.times_s[one.layout][batch] for batch in one.batches}
        return Ramped(
            ramp=self.ramp,
            steps=self.steps,
            step_time_s=times_s,
            replans_s=self.replans_s if self.in_phases else 0.0,
        )

    def recommended(self, problem: Problem, solution: Solution) -> Solution:
        """*solution* with the layout that is best over the ramp."""
        best = self.layouts[self.chosen]
        if (
            solution.best is None
            or best.estimate.layout == solution.best.estimate.layout
        ):
            return solution
        others = [one for one in solution.runners_up if one is not best]
        value = problem.value(best)
        return replace(
            solution,
            best=best,
            value=value,
            status=Status.FEASIBLE,
            runners_up=(solution.best, *others),
            instead_of=None,
            operators=None,
        )


def over_ramp(
    problem: Problem,
    solution: Solution,
    ramp: BatchRamp,
    *,
    tokens: float,
    replan_s: float,
    planned: Callable[[int], Solution | None],
) -> OverRamp:
    """What is best for *ramp*; *planned* gives the plan at another batch, or None.

    Raises Contradiction where some batch has no layout.
    """
    job = problem.job
    steps = ramp.steps(job.global_batch, tokens / job.seq_len)
    found = [solution, *(planned(batch) for batch in between(list(steps)[:-1]))]
    layouts = tuple(_distinct(problem, found))
    times_s = tuple(_times(problem, list(steps), layouts))
    taken = phases(steps, times_s, replan_s)
    if taken is None:
        missing = next(b for b in steps if all(b not in one for one in times_s))
        raise Contradiction(
            f"--rampup-batch-size: no layout on {problem.gpus:,} GPUs was found for a "
            f"batch of {missing}; choose a larger START and INCREMENT, or fewer GPUs"
        )
    return OverRamp(
        ramp=ramp,
        layouts=layouts,
        times_s=times_s,
        steps=steps,
        replan_s=replan_s,
        phases=tuple(taken),
    )


def between(batches: Sequence[int]) -> list[int]:
    """The first of them, and the nearest to so many at equal ratios after it.

    >>> between(list(range(16, 1600, 16)))
    [16, 80, 336]
    """
    if not batches:
        return []
    first, last = batches[0], batches[-1]
    ratio = (last / first) ** (1 / (BETWEEN + 1))
    wanted = [first * ratio**number for number in range(BETWEEN + 1)]
    near = (min(batches, key=lambda one: abs(one - each)) for each in wanted)
    return list(dict.fromkeys(near))


def _distinct(
    problem: Problem, found: Iterable[Solution | None]
) -> Iterator[Candidate]:
    """Every layout once, at the last batch, the recommended one first."""
    full, seen = problem.job.global_batch, set[str]()
    for solution in found:
        if solution is None or solution.best is None:
            continue
        for one in (solution.best, *solution.runners_up):
            layout = one.estimate.layout
            each = layout.global_batch // layout.micro_batches
            if full % each or len(seen) >= MOST_LAYOUTS:
                continue
            layout = replace(layout, global_batch=full, micro_batches=full // each)
            if str(layout.to_dict()) in seen:
                continue
            seen.add(str(layout.to_dict()))
            at_last = (
                one
                if one.estimate.layout == layout
                else simulate(problem, one.choice, layout)
            )
            if at_last is not None:
                yield at_last


def _times(
    problem: Problem, batches: Sequence[int], layouts: Sequence[Candidate]
) -> Iterator[dict[int, float]]:
    """Seconds of a step of each layout, at each batch that it can run."""
    full = problem.job.global_batch
    for one in layouts:
        layout = one.estimate.layout
        each = full // layout.micro_batches
        mine = [b for b in batches if b % each == 0 and b != full]
        asked = [
            (
                replace(problem.job, global_batch=b),
                replace(layout, global_batch=b, micro_batches=b // each),
                problem.machine,
            )
            for b in mine
        ]
        times = {
            batch: answer.step_time_s
            for batch, answer in zip(mine, answers(asked), strict=True)
            if not isinstance(answer, MeshwrightError)
        }
        yield {**times, full: one.estimate.step_time_s}
