"""Pipelines that do not flush: how stale the weights are that a gradient is made with.

A step is an update. Each rank updates its own stage after its M backwards, and goes on;
by then it has done the forwards of micro-batches of later steps, *ahead* of its
backwards by so many as there are ranks behind it (`hop` for each):

    hop 1   a forward, then a backward, as in 1F1B
    hop 2   as where both are done at once: what a rank sends comes back 2 hops later

    async-1f1b   both passes with the weights of the forward, which are kept (weight
                 stashing; PipeDream, Narayanan et al., SOSP 2019)
    2bw          the same, always those of one update before (PipeDream-2BW, Narayanan
                 et al., ICML 2021): W(t+1) = W(t) - lr * grad f(W(t-1))
    pipemare     forwards with what is there then, backwards too: one copy of the
                 weights (PipeMare, Yang et al., MLSys 2021)
    pb           the same (Kosson et al., MLSys 2021), meant for M = 1
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True, slots=True, kw_only=True)
class Staleness:
    """How a schedule without a flush uses weights; counts broadcast.

    `stashes`: a backward has the weights of its forward. `delay` is how many updates
    old those are, where that is the same everywhere; None: as it comes.
    """

    hop: int
    stashes: bool
    delay: int | None = None

    def ahead(self, rank: Any, pp: Any) -> Any:
        """Micro-batches whose forwards *rank* has done before a backward's turn.

        >>> stale = Staleness(hop=2, stashes=False)
        >>> [stale.ahead(rank, 4) for rank in range(4)]
        [6, 4, 2, 0]
        """
        return self.hop * (pp - 1 - rank)

    def versions(self, rank: Any, pp: Any, micro_batches: Any) -> Any:
        """Copies of its weights that *rank* holds at most.

        >>> stale = Staleness(hop=1, stashes=True)
        >>> [int(stale.versions(rank, 4, 1)) for rank in range(4)]
        [4, 3, 2, 1]
        """
        if not self.stashes:
            return np.ones_like(rank + pp + micro_batches)
        if self.delay is not None:
            return np.full_like(rank + pp + micro_batches, 1 + self.delay)
        return 1 + -(-self.ahead(rank, pp) // micro_batches)

    def version(self, number: int, ahead: int, micro_batches: int) -> int:
        """How many updates the weights have had with which the forward of micro-batch
        *number* is made, both counted from where the pipeline was filled."""
        if self.delay is not None:
            return max(number // micro_batches - self.delay, 0)
        return max((number - ahead) // micro_batches, 0)

    def updates_late(self, rank: int, pp: int, micro_batches: int) -> float:
        """Updates between the weights of a forward and the update that its gradient
        is for, on average over a step's micro-batches."""
        if self.delay is not None:
            return float(self.delay)
        return float(self.ahead(rank, pp) / micro_batches)
