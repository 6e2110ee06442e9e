"""Plans for several questions, in one process: numbers of GPUs, or points of a sweep.

The model's graph, the machine and the prices of its blocks are shared; each question is
a search of its own, with its own proof.

Strong scaling keeps the global batch, weak scaling the batch of each GPU; efficiency is
what a GPU does over what it does in the number of GPUs where that is most.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from costmodel.simulation import Estimate
from planner.analysis.infeasibility import constraint_of
from planner.problem import Posed, Problem, Solution
from planner.search import Clock, Limits
from profiles.errors import InvalidQuestion, OutOfTime

WEAK, STRONG = "weak", "strong"
LARGEST_CURVE: Final = 131_072  # GPUs
WEAK_AT: Final = 1024  # GPUs that share a model's default batch in weak scaling


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """The answer to one question; `reason` says why there is no layout."""

    posed: Posed | None = None
    solution: Solution | None = None
    reason: str | None = None
    error: InvalidQuestion | None = None  # what is asked does not go together
    limits: Limits = field(default_factory=Limits)  # in which it was planned

    @property
    def estimate(self) -> Estimate | None:
        """Of the recommended layout; None if there is none."""
        best = self.solution.best if self.solution else None
        return best.estimate if best else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Sized(Planned):
    """The answer for one number of GPUs."""

    gpus: int


def planned(
    pose: Callable[[], Posed],
    solve: Callable[[Problem, Limits], Solution],
    limits: Limits,
) -> Planned:
    """A plan, or why there is none."""
    try:
        posed = pose()
    except InvalidQuestion as error:
        return Planned(reason=str(error), error=error)
    try:
        solution = solve(posed.problem, limits)
    except OutOfTime as error:
        return Planned(posed=posed, reason=str(error), limits=limits)
    found = solution.best is not None
    reason = None if found else constraint_of(posed.problem, Clock(limits=limits))
    return Planned(posed=posed, solution=solution, reason=reason, limits=limits)


def plans(
    sizes: Sequence[int],
    pose: Callable[[int], Posed],
    solve: Callable[[Problem, Limits], Solution],
    limits: Callable[[], Limits] = Limits,
) -> Iterator[Sized]:
    """A plan for each of *sizes*, or why there is none; each in *limits* of its own."""
    for gpus in sizes:
        found = planned(lambda gpus=gpus: pose(gpus), solve, limits())  # type: ignore[misc]
        yield Sized(
            gpus=gpus,
            posed=found.posed,
            solution=found.solution,
            reason=found.reason,
            error=found.error,
            limits=found.limits,
        )


def efficiency(rows: Sequence[Sized]) -> dict[int, float]:
    """Tokens a second of one GPU, over those of the number of GPUs where most are."""
    rates = {
        row.gpus: row.estimate.tokens_per_s_per_gpu for row in rows if row.estimate
    }
    best = max(rates.values(), default=1.0)
    return {gpus: rate / best for gpus, rate in rates.items()}


def curve_sizes(node: int, most: int | None) -> tuple[int, ...]:
    """Numbers of GPUs of a curve: a node, doubled.

    >>> curve_sizes(8, 100)
    (8, 16, 32, 64)
    """
    largest = min(most or LARGEST_CURVE, LARGEST_CURVE)
    found = [min(node, largest)]
    while found[-1] * 2 <= largest:
        found.append(found[-1] * 2)
    return tuple(found)


def batches(kind: str, sizes: Sequence[int], batch: int, at: int) -> dict[int, int]:
    """The global batch of each number of GPUs: *batch* is that of all, or of *at*.

    >>> batches("weak", (8, 16), 64, 8), batches("strong", (8, 16), 64, 8)
    ({8: 64, 16: 128}, {8: 64, 16: 64})
    """
    return {gpus: -(-batch * gpus // at) if kind == WEAK else batch for gpus in sizes}
