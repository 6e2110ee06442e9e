"""Megatron-LM's takeaways (Narayanan et al., SC 2021, section 3).

1  tensor parallelism inside the node, up to its size; then pipelines across nodes
2  as little of both as fits; data parallelism is for scale
3  the micro-batch with the least (b'/b + p − 1) · (t_f(b) + t_b(b))

Interleaved schedules as its section 2.2, all recomputed only if it must be. The third
is the columns' closed form: the paper's, with what its terms leave out.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, final

import numpy as np

from costmodel.columns import Columns
from planner.baselines.recipe import Rung, follow, keeping, ordered, recomputes
from planner.floors import leaf_bounds
from planner.problem import Problem
from planner.search import AbstractSearch, Limits
from planner.solution import Solution
from planner.table import Array


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Megatron(AbstractSearch):
    """The least tp, inside the node, and then the least pp that fits; no ZeRO."""

    name: ClassVar[str] = "megatron"

    def solve(self, problem: Problem, limits: Limits) -> Solution:
        return follow(self.name, problem, limits, _rungs(problem))


def _rungs(problem: Problem) -> Iterator[Rung]:
    each = (
        keeping(problem, cp=1, zero=0, recompute=recompute)
        for recompute in recomputes(problem)
    )
    several = [_spread(found) for found in each if found is not None]
    shapes = {shape for found in several for shape in _shapes(problem, found)}
    for pp, tp in sorted(shapes):
        for found in several:
            here = found.take((found.pp == pp) & (found.tp == tp))
            if len(here):
                seconds = leaf_bounds(problem, here).step_time_s
                yield Rung(columns=ordered(here, seconds))


def _shapes(problem: Problem, found: Columns) -> set[tuple[int, int]]:
    """(pp, tp): a pipeline only where tp is as wide as the node lets it be."""
    node = problem.machine.cluster.islands[0].devices_per_node
    inside = found.tp[found.tp <= node]
    widest = inside.max() if len(inside) else found.tp.min()
    wanted = (found.tp == widest) | ((found.pp == 1) & (found.tp <= widest))
    pairs: Array = np.stack([found.pp[wanted], found.tp[wanted]], axis=1)
    return {(int(pp), int(tp)) for pp, tp in pairs}


def _spread(found: Columns) -> Columns:
    """Experts over as many ranks as there are, sequence parallelism where it can be."""
    shape = np.stack([found.tp, found.pp, found.dp])
    _, group = np.unique(shape, axis=1, return_inverse=True)
    best = np.zeros(group.max() + 1, dtype=np.int64)
    rank = found.ep * 2 + found.sequence_parallel
    np.maximum.at(best, group, rank)
    return found.take(rank == best[group])
