"""`plan --gpus 8..512`: how many GPUs? One plan for each number, in one process.

The model's graph, the machine and the prices of its blocks are shared; each number of
GPUs is a search of its own, with its own proof.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from costmodel.simulation import Estimate
from planner.analysis.infeasibility import constraint_of
from planner.problem import Posed, Problem, Solution
from planner.search import Clock, Limits
from profiles.errors import InvalidQuestion, OutOfTime


@dataclass(frozen=True, slots=True, kw_only=True)
class Sized:
    """The answer for one number of GPUs; `reason` says why there is no layout."""

    gpus: int
    posed: Posed | None = None
    solution: Solution | None = None
    reason: str | None = None
    error: InvalidQuestion | None = None  # the pins do not go with this number
    limits: Limits = field(default_factory=Limits)  # in which it was planned

    @property
    def estimate(self) -> Estimate | None:
        """Of the recommended layout; None if there is none."""
        best = self.solution.best if self.solution else None
        return best.estimate if best else None


def plans(
    sizes: Sequence[int],
    pose: Callable[[int], Posed],
    solve: Callable[[Problem, Limits], Solution],
    limits: Callable[[], Limits] = Limits,
) -> Iterator[Sized]:
    """A plan for each of *sizes*, or why there is none; each in *limits* of its own."""
    for gpus in sizes:
        own = limits()
        try:
            posed = pose(gpus)
        except InvalidQuestion as error:
            yield Sized(gpus=gpus, reason=str(error), error=error)
            continue
        try:
            solution = solve(posed.problem, own)
        except OutOfTime as error:
            yield Sized(gpus=gpus, posed=posed, reason=str(error), limits=own)
            continue
        found = solution.best is not None
        clock = Clock(limits=own)
        reason = None if found else constraint_of(posed.problem, clock)
        yield Sized(
            gpus=gpus, posed=posed, solution=solution, reason=reason, limits=own
        )


def efficiency(rows: Sequence[Sized]) -> dict[int, float]:
    """Tokens a second of one GPU, over those of the number of GPUs where most are."""
    rates = {
        row.gpus: row.estimate.tokens_per_s_per_gpu for row in rows if row.estimate
    }
    best = max(rates.values(), default=1.0)
    return {gpus: rate / best for gpus, rate in rates.items()}
