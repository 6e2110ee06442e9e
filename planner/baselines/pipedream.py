"""PipeDream as a search: the uniform layout that is nearest to its split.

For the largest micro-batch first, layers are profiled, split into replicated stages
(`pipedream_stages`), and the pipeline with the nearest number of stages is simulated as
1F1B with a flush: stages of one width, no tensor parallelism, no ZeRO. The first that
fits is taken; where no micro-batch's nearest does, the next nearest.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, Final, final

import numpy as np

from planner.baselines.layer_profile import bytes_per_s, layer_profiles
from planner.baselines.pipedream_stages import Unit, pipedream_split
from planner.baselines.recipe import Rung, follow, keeping, ordered, recomputes
from planner.floors import leaf_bounds
from planner.problem import Problem
from planner.search import AbstractSearch, Limits
from planner.solution import Solution
from planner.table import divisors

MOST_UNITS: Final = 64  # a level with more is cut in two: 512 nodes are 8 × 64


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class PipeDream(AbstractSearch):
    """The min-max split of layers into replicated stages."""

    name: ClassVar[str] = "pipedream"

    def solve(self, problem: Problem, limits: Limits) -> Solution:
        return follow(self.name, problem, limits, _rungs(problem))


def levels_of(problem: Problem) -> list[Unit]:
    """The devices of a node, and the nodes."""
    node = problem.machine.cluster.islands[0].devices_per_node
    inside = max(one for one in divisors(problem.gpus) if one <= node)
    counts = [(inside, False), *((n, True) for n in _cut(problem.gpus // inside))]
    used = [(count, far) for count, far in counts if count > 1] or counts[:1]
    return [
        Unit(count=count, bytes_per_s=bytes_per_s(problem, far=far))
        for count, far in used
    ]


def _cut(units: int) -> list[int]:
    """*units* as a product of levels that are not too wide to plan over.

    >>> _cut(2048)
    [64, 32]
    """
    found = []
    while units > MOST_UNITS:
        part = max(one for one in divisors(units) if one <= MOST_UNITS)
        if part == 1:
            break
        found.append(part)
        units //= part
    return [*found, units]


def _rungs(problem: Problem) -> Iterator[Rung]:
    rule = {"tp": 1, "cp": 1, "ep": 1, "zero": 0, "schedule": "1f1b"}
    limit = problem.memory_limit_bytes
    left = []
    for recompute in recomputes(problem):
        found = keeping(problem, **rule, recompute=recompute)
        if found is None:
            continue
        found = found.take(leaf_bounds(problem, found).needed_bytes <= limit)
        for micro_batch in np.unique(found.micro_batch)[::-1]:
            here = found.take(found.micro_batch == micro_batch)
            depth = _depth(problem, int(micro_batch), recompute)
            near = ordered(here, np.abs(np.log(here.pp / depth)))
            yield Rung(columns=near.take(np.array([0])))
            left.append(Rung(columns=near.take(np.arange(1, len(near)))))
    yield from left


def _depth(problem: Problem, micro_batch: int, recompute: str) -> int:
    """Stages of the split that fits; of the fastest one, where none does."""
    layers, levels = layer_profiles(problem, micro_batch, recompute), levels_of(problem)
    split = pipedream_split(layers, levels, problem.memory_limit_bytes)
    return (split if split.stages else pipedream_split(layers, levels)).depth
