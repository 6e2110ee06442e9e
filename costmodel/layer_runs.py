"""How a model's layers fall into the virtual stages of uniform candidates, as arrays.

A pipeline is a few runs of equal stages: the first, middle ones, the last. Where the
leading layers differ from the rest (DeepSeek's dense ones), each run of middle stages
falls into those before the change, the one across it, and those after. Where kinds
take turns, a middle stage counts as whole turns only, which is a lower bound.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import numpy as np
from numpy.typing import NDArray

from costmodel.uniform import replaced
from profiles.errors import Unsupported
from profiles.graph import ModelGraph

Array = NDArray[Any]
Layers = dict[str, Array]  # how many of each kind


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """So many virtual stages with the same numbered layers."""

    count: Array
    layers: Layers


def stage_runs(graph: ModelGraph, stages: Array) -> tuple[Run, ...]:
    """The first stage, runs of middle ones and the last, as `uniform.split_layers`
    cuts them; where there is one stage only, it is the first.

    Raises Unsupported for a pattern of layers that is none of those above.
    """
    tail = replaced(graph.body, stages, graph.tail)
    base, extra = np.divmod(graph.body + tail, stages)
    middle = np.maximum(stages - 2, 0)
    high = np.minimum(extra, middle)
    first = base + (extra > middle)
    last = np.where(stages > 1, base - tail, 0)
    cut = _Cut(graph)
    low = middle - high
    return (
        Run(count=np.ones_like(stages), layers=cut.between(stages * 0, first)),
        *cut.middle(first, base, low),
        *cut.middle(first + low * base, base + 1, high),
        Run(
            count=(stages > 1).astype(int),
            layers=cut.between(graph.body - last, last),
        ),
    )


class _Cut:
    """Counts of each kind of layer in cuts of a model."""

    def __init__(self, graph: ModelGraph) -> None:
        self.kinds = list(dict.fromkeys(block.name for block, _ in graph.runs))
        order = [block.name for block, count in graph.runs for _ in range(count)]
        self.sums = {
            kind: np.array([0, *accumulate(int(one == kind) for one in order)])
            for kind in self.kinds
        }
        self.leading = graph.runs[0][1] if len(graph.runs) == 2 else 0
        self.turn = graph.turn
        if not self.turn:
            raise Unsupported(
                f"{graph.name} has kinds of layers in no regular turn, which plan does "
                "not search; simulate prices its layouts"
            )

    def between(self, start: Array, length: Array) -> Layers:
        """In *length* layers from *start*."""
        return {
            kind: sums[start + length] - sums[start] for kind, sums in self.sums.items()
        }

    def middle(self, start: Array, length: Array, count: Array) -> Iterator[Run]:
        """*count* stages of *length* layers each, from layer *start*."""
        if len(self.kinds) == 1:
            yield Run(count=count, layers={self.kinds[0]: length})
        elif self.leading:
            yield from self._across(start, length, count)
        else:
            turns = length // self.turn
            whole = {kind: turns * sums[self.turn] for kind, sums in self.sums.items()}
            yield Run(count=count, layers=whole)

    def _across(self, start: Array, length: Array, count: Array) -> Iterator[Run]:
        """Stages before the change of kinds, the one across it, those after."""
        early, late = self.kinds
        left = np.maximum(self.leading - start, 0)
        each = np.maximum(length, 1)
        before = np.minimum(left // each, count)
        rest = np.where(before < count, left - before * each, 0)
        across = (rest > 0).astype(int)
        yield Run(count=before, layers={early: length, late: 0 * length})
        yield Run(count=across, layers={early: rest, late: length - rest})
        yield Run(
            count=count - before - across, layers={early: 0 * length, late: length}
        )
