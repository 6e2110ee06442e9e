"""Hugging Face's ladder: "Efficient training on multiple GPUs" (transformers' guide).

one node        DDP if the model fits; else ZeRO, a level at a time; else tensor
                parallelism inside the node; else a pipeline beside it
several nodes   where they are joined fast, DDP and ZeRO come first as well; else, and
                where those do not fit, pipeline × tensor × data parallelism with ZeRO-1

On each rung the largest micro-batch that fits; gradient checkpointing where no rung
fits without.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, Final, final

import numpy as np

from planner.baselines.recipe import Rung, follow, keeping, ordered, recomputes
from planner.problem import Problem
from planner.search import AbstractSearch, Limits
from planner.solution import Solution
from profiles.units import GB

# [chosen] The guide says "fast inter-node connectivity" and gives no number: one port
# of 100 Gb/s a device.
FAST_BYTES_PER_S: Final = 12.5 * GB


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class HfLadder(AbstractSearch):
    """DDP, ZeRO, then tensor parallelism and pipelines: the first that fits."""

    name: ClassVar[str] = "hf-ladder"

    def solve(self, problem: Problem, limits: Limits) -> Solution:
        return follow(self.name, problem, limits, _rungs(problem))


def _rungs(problem: Problem) -> Iterator[Rung]:
    for recompute in recomputes(problem):
        for rule in _rules(problem):
            found = keeping(problem, cp=1, ep=1, recompute=recompute, **rule)
            if found is None:
                continue
            inside = found.tp <= max(_node(problem), int(found.tp.min()))
            found = found.take(inside)  # tensor parallelism stays in the node
            shards = found.zero_group == _widest(found.dp, found.zero_group)
            found = found.take(shards)
            keys = (found.pp, -found.tp, -found.micro_batch, found.virtual_stages)
            yield Rung(columns=ordered(found, *keys))


def _rules(problem: Problem) -> Iterator[dict[str, Any]]:
    if _fast(problem):
        for zero in (0, 1, 2, 3):
            yield {"tp": 1, "pp": 1, "zero": zero}
    if problem.gpus <= _node(problem):
        yield {"pp": 1, "zero": 0}
    yield {"schedule": "1f1b", "zero": 1}


def _fast(problem: Problem) -> bool:
    """One node, or nodes that are joined fast."""
    if problem.gpus <= _node(problem):
        return True
    outermost = problem.machine.cluster.islands[0].levels[-1]
    return outermost.bytes_per_s >= FAST_BYTES_PER_S


def _node(problem: Problem) -> int:
    return problem.machine.cluster.islands[0].devices_per_node


def _widest(dp: Any, group: Any) -> Any:
    """The largest shard group that each row's degree of data parallelism has."""
    widest = np.zeros(int(dp.max()) + 1, dtype=np.int64)
    np.maximum.at(widest, dp, group)
    return widest[dp]
