"""FSDP alone: parameters sharded over data parallelism, and nothing else.

Hybrid shards first, one to a node, then shards over all ranks (Zhao et al., VLDB 2023,
section 3.2); the largest micro-batch that fits; all is recomputed only if it must.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, final

from planner.baselines.recipe import Rung, follow, keeping, largest_first, recomputes
from planner.problem import Problem
from planner.search import AbstractSearch, Limits
from planner.solution import Solution


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Fsdp(AbstractSearch):
    """ZeRO-3 in hybrid shards, tp = pp = cp = 1."""

    name: ClassVar[str] = "fsdp"

    def solve(self, problem: Problem, limits: Limits) -> Solution:
        return follow(self.name, problem, limits, _rungs(problem))


def _rungs(problem: Problem) -> Iterator[Rung]:
    node = problem.machine.cluster.islands[0].devices_per_node
    for recompute in recomputes(problem):
        rule = {"tp": 1, "pp": 1, "cp": 1, "ep": 1, "zero": 3}
        found = keeping(problem, **rule, recompute=recompute)
        if found is None:
            continue
        inside = found.zero_group[found.zero_group <= node]
        hybrid = inside.max() if len(inside) else found.zero_group.min()
        for group in sorted({int(hybrid), int(found.zero_group.max())}):
            here = found.take(found.zero_group == group)
            yield Rung(columns=largest_first(here))
