"""`Units`: between which layers a model is cut into stages, and what lies between cuts.

A cut is between any two layers; where kinds of layers take turns, between whole turns.
Of models whose leading layers differ from the rest (DeepSeek's dense ones) a stage of n
units has some *leading* ones.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from costmodel.batched import Layers
from profiles.arrays import Array
from profiles.models import ModelGraph


@dataclass(frozen=True, slots=True, kw_only=True)
class Units:
    """*count* of them in order, the first *leading* of another kind, *early*."""

    count: int
    layers: dict[str, int]  # of one that is not leading, by kind
    early: str = ""
    leading: int = 0

    @classmethod
    def of(cls, graph: ModelGraph) -> Units | None:
        """Those of *graph*; None where its layers fall into no whole turns."""
        if len(graph.runs) == 2:
            (early, leading), (late, _) = graph.runs
            return cls(
                count=graph.body,
                layers={late.name: 1},
                early=early.name,
                leading=leading,
            )
        turn = graph.turn
        if not turn or graph.body % turn:
            return None
        order = [block.name for block, count in graph.runs for _ in range(count)]
        return cls(count=graph.body // turn, layers=dict(Counter(order[:turn])))

    @property
    def size(self) -> int:
        """Layers of a unit."""
        return sum(self.layers.values())

    def numbered(self, units: Array, leading: Array) -> Layers:
        """The layers of stages with so many *units*, of which some are *leading*."""
        found: Layers = {
            kind: count * (units - leading) for kind, count in self.layers.items()
        }
        return {self.early: leading, **found} if self.leading else found

    def leading_of(self, start: ArrayLike, units: ArrayLike) -> Array:
        """Of *units* from *start* how many are leading."""
        left = self.leading - np.asarray(start)
        return np.asarray(np.clip(left, 0, np.asarray(units)))
