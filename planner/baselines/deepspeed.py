"""The grid of DeepSpeed's autotuner: ZeRO level × micro-batch, the best measured.

Data parallelism alone, as in its tutorial ("DeepSpeed Autotuning"): levels 0 to 3,
micro-batches that are powers of two. Whether activations are checkpointed is the
user's, not its: all is recomputed only where nothing fits without. Offloading is the
question's too (`--offload`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, final

from costmodel.columns import Columns
from planner.baselines.recipe import Rung, follow, keeping, ordered, recomputes
from planner.problem import Problem
from planner.search import AbstractSearch, Limits
from planner.solution import Solution


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class DeepSpeed(AbstractSearch):
    """ZeRO 0 to 3 over all ranks, each micro-batch of a power of two, all tried."""

    name: ClassVar[str] = "deepspeed"

    def solve(self, problem: Problem, limits: Limits) -> Solution:
        return follow(self.name, problem, limits, _rungs(problem))


def _rungs(problem: Problem) -> Iterator[Rung]:
    for recompute in recomputes(problem):
        found = keeping(problem, tp=1, pp=1, cp=1, ep=1, recompute=recompute)
        if found is not None:
            grid = _grid(problem, found)
            keys = (grid.zero, grid.micro_batch)
            yield Rung(columns=ordered(grid, *keys), all=True)


def _grid(problem: Problem, found: Columns) -> Columns:
    size, pins = found.micro_batch, problem.pins
    doubled = (size & (size - 1)) == 0
    if pins.micro_batch is not None or pins.micro_batches is not None:
        doubled |= True
    plain = (found.zero_group == found.zero_group.max()) | (found.zero == 0)
    return found.take(doubled & plain)
