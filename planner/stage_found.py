"""`Found`: what a search over stages of any mesh comes to; and a layout simulated."""

from __future__ import annotations

from dataclasses import dataclass

from costmodel.estimate import estimate
from costmodel.layout import Layout
from costmodel.uniform import Uniform
from planner.problem import Problem, Staged
from profiles.errors import MeshwrightError


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """Candidates that fit, the best first; how many partitions were weighed and
    simulated, what none goes below (the value and the seconds), and whether all was
    looked at; seconds that none takes less than whose cuts lie between any layers."""

    candidates: tuple[Staged, ...]
    partitions: int
    simulated: int
    lower: float
    lower_s: float
    complete: bool
    any_cut_s: float


def simulate(problem: Problem, beside: Uniform, layout: Layout) -> Staged | None:
    """*layout* simulated; None if it cannot run or does not fit."""
    try:
        found = estimate(
            problem.job, problem.machine.cluster, layout, on=problem.machine
        )
    except MeshwrightError:
        return None
    candidate = Staged(choice=beside, estimate=found)
    return candidate if problem.fits(candidate) else None
