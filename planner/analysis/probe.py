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

from costmodel.layout import LayerPlan, Layout, Mesh, Uniform
from planner.analysis.explain import indistinguishable, worse
from planner.problem import Candidate, Problem, Solution, Staged
from planner.search import FARTHEST

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
    return min(_apart(one, other) for other in others)


def _apart(a: Candidate, b: Candidate) -> float:
    if isinstance(a, Staged) and isinstance(b, Staged):
        return stages_apart(a.estimate.layout, b.estimate.layout)
    return apart(a.choice, b.choice)


def stages_apart(a: Layout, b: Layout) -> float:
    """How unlike two layouts of any stages are: doublings between their numbers, of
    ranks as the mean over layers, and the share of layers that make other things
    again."""
    numbers = ((a.pp, b.pp), (a.micro_batches, b.micro_batches))
    found: float = sum(abs(log2(one / other)) for one, other in numbers)
    layers = [list(_layers(layout)) for layout in (a, b)]
    for (mesh, plan), (other, others) in zip(*layers, strict=True):
        ranks = ((mesh.tp, other.tp), (mesh.dp, other.dp))
        doublings = sum(abs(log2(one / two)) for one, two in ranks)
        unlike = plan.retention.recomputed != others.retention.recomputed
        found += (doublings + unlike) / len(layers[0])
    return found


def _layers(layout: Layout) -> Iterator[tuple[Mesh, LayerPlan]]:
    for stage in layout.stages:
        for plan in stage.plans:
            yield stage.mesh, plan


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
