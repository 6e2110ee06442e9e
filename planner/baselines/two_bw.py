"""PipeDream-2BW's planner: a grid of equi-replicated pipelines (Narayanan et al.,
ICML 2021, section 4).

    width w × depth p × micro-batch b × recompute or not, m = B / (w · b) ≥ p

    t(w, p, b) = m · max_i max(T_i + transfers of i, exchange of i's weights / m)

The closed form ranks, and the first that fits is taken: simulated as 1F1B with a flush,
which is what the paper calls PipeDream-Flush (two versions of the weights are another
training, which is not compared here). No tensor parallelism, no ZeRO.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from typing import ClassVar, final

import numpy as np

from costmodel.layout import Columns, split_layers
from planner.baselines.pipedream import LayerProfile, bytes_per_s, layer_profiles
from planner.baselines.recipes import Rung, follow, keeping, ordered, recomputes
from planner.problem import Problem, Solution
from planner.search import AbstractSearch, Limits
from profiles.arrays import Array


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class TwoBw(AbstractSearch):
    """The width and depth of least closed form that fits."""

    name: ClassVar[str] = "2bw"

    def solve(self, problem: Problem, limits: Limits) -> Solution:
        return follow(self.name, problem, limits, _rungs(problem))


def batch_s(
    stages: Sequence[Sequence[LayerProfile]],
    *,
    width: int,
    micro_batches: int,
    bytes_per_s: float,
) -> float:
    """Seconds of a batch through *stages*, each on *width* replicas.

    >>> stage = [LayerProfile(seconds=3.0, weight_bytes=8.0)]
    >>> batch_s([stage], width=2, micro_batches=4, bytes_per_s=1.0)
    12.0
    """
    slowest, exchanged = 0.0, 0.0
    for number, layers in enumerate(stages):
        seconds = sum(layer.seconds for layer in layers)
        handed = layers[-1].activation_bytes
        came = stages[number - 1][-1].activation_bytes if number else 0.0
        slowest = max(slowest, seconds + (handed + came) / bytes_per_s)
        weights = sum(layer.weight_bytes for layer in layers)
        exchanged = max(exchanged, 2 * (width - 1) / width * weights / bytes_per_s)
    return max(micro_batches * slowest, exchanged)


def _rungs(problem: Problem) -> Iterator[Rung]:
    rule = {"tp": 1, "cp": 1, "ep": 1, "zero": 0, "schedule": "1f1b"}
    each = [keeping(problem, **rule, recompute=one) for one in recomputes(problem)]
    several = [found for found in each if found is not None]
    if several:
        found = Columns.concatenate(several)
        batches = problem.job.global_batch // found.dp // found.micro_batch
        keys = (batches < found.pp, _seconds(problem, found))
        yield Rung(columns=ordered(found, *keys))


def _seconds(problem: Problem, found: Columns) -> Array:
    """The closed form of each row."""

    @cache
    def profiles(size: int, recompute: int) -> tuple[LayerProfile, ...]:
        return layer_profiles(problem, size, found.recomputes[recompute])

    graph, batch = problem.job.graph, problem.job.global_batch
    far = problem.gpus > problem.machine.cluster.islands[0].devices_per_node
    rate = bytes_per_s(problem, far=far)
    seconds = np.empty(len(found))
    for row in range(len(found)):
        depth, width = int(found.pp[row]), int(found.dp[row])
        size = int(found.micro_batch[row])
        layers = profiles(size, int(found.recompute[row]))
        seconds[row] = batch_s(
            _cut(layers, split_layers(graph.body, depth, graph.tail)),
            width=width,
            micro_batches=batch // width // size,
            bytes_per_s=rate,
        )
    return seconds


def _cut(
    layers: Sequence[LayerProfile], counts: Sequence[int]
) -> list[Sequence[LayerProfile]]:
    """Layers by stage: the embedding before the first, the ends after the last."""
    ends = np.cumsum(counts) + 1
    bounds = [0, *(int(end) for end in ends[:-1]), len(layers)]
    return [layers[first:end] for first, end in pairwise(bounds)]
