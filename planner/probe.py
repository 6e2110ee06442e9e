"""`plan --probe K`: the layouts worth measuring first.

The recommendation; then what the model cannot tell from it, nearest first: measuring
those decides which to take; then others, each as unlike as can be from those before
it, since they say most about prices that the first do not hang on.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import log2
from pathlib import Path
from typing import Final

from costmodel.uniform import Uniform
from planner.explain import indistinguishable, worse
from planner.problem import Candidate, Problem
from planner.shortlist import FARTHEST
from planner.solution import Solution

POOL: Final = 2  # runners-up to choose from, for each layout that is asked for
_SIZES: Final = ("tp", "pp", "dp", "cp", "ep", "micro_batch", "virtual_stages")
_KINDS: Final = ("schedule", "zero", "sequence_parallel", "recompute", "cp_kind")


def probes(problem: Problem, solution: Solution, count: int) -> list[Candidate]:
    """At most *count* candidates, the first to be measured first."""
    best = solution.best
    if best is None:
        return []
    alike = [
        solution.runners_up[index] for index in indistinguishable(problem, solution)
    ]
    found = [best, *alike][:count]
    left = [
        one
        for one in solution.runners_up
        if one not in found and worse(problem, best, one) < FARTHEST - 1
    ]
    while left and len(found) < count:
        farthest = max(left, key=lambda one: _least_apart(one, found))
        left.remove(farthest)
        found.append(farthest)
    return found


def _least_apart(one: Candidate, others: list[Candidate]) -> float:
    return min(apart(one.choice, other.choice) for other in others)


def apart(a: Uniform, b: Uniform) -> float:
    """How unlike two layouts are: doublings between their sizes, and other kinds.

    >>> apart(Uniform(tp=8), Uniform(tp=2, dp=4, recompute="full"))
    5.0
    """
    sizes = [(float(getattr(a, name)), getattr(b, name)) for name in _SIZES]
    doublings: float = sum(abs(log2(one / other)) for one, other in sizes)
    return doublings + float(
        sum(getattr(a, name) != getattr(b, name) for name in _KINDS)
    )


def probe_files(count: int, out: Path | None) -> Iterator[Path]:
    """probe-1.json …, beside *out* or in the current folder."""
    folder = Path() if out is None else out.parent
    return (folder / f"probe-{number}.json" for number in range(1, count + 1))
