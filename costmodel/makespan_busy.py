"""What a pipeline cannot beat whatever the order of its passes: fill, then work.

A rank waits until a first forward reaches it, and then passes all of its micro-batches
through all of its stages. Any schedule has these paths; they are what is left where W
fills the bubbles, and a loose bound where it does not:

    zb-h1, zb-interleaved   the first rank, and the last of each run of stages
    zb-v, dualpipe-v        the first and the last rank, two stages each
    chimera                 the first rank and one in the middle, half of the
                            micro-batches through each of two stages; a micro-batch
                            alone, there and back; and stages all as light as the
                            lightest (`_both_ways`)
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import numpy as np
from numpy.typing import NDArray

from costmodel.schedule import SCHEDULES

Array = NDArray[Any]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Chain:
    """Seconds of virtual stages in model order, as runs of equal ones."""

    counts: tuple[Array, ...]
    forward_s: tuple[Array, ...]
    both_s: tuple[Array, ...]
    transfer_s: Array

    @property
    def starts(self) -> list[Array]:
        """The number of each run's first stage."""
        ends = accumulate(self.counts)
        return [end - count for end, count in zip(ends, self.counts, strict=True)]

    def fill_s(self, stage: Array) -> Array:
        """Until a first forward reaches *stage*."""
        passes = sum(
            value * np.clip(stage - start, 0, count)
            for value, start, count in zip(
                self.forward_s, self.starts, self.counts, strict=True
            )
        )
        return np.asarray(passes + stage * self.transfer_s)

    def both_at(self, stage: Array) -> Array:
        """Forward and backward of *stage*."""
        found: Array = np.zeros(())
        for value, start, count in zip(
            self.both_s, self.starts, self.counts, strict=True
        ):
            inside = (stage >= start) & (stage < start + count)
            found = np.where(inside, value, found)
        return found

    def least_s(self, values: tuple[Array, ...] | None = None) -> Array:
        """The least of *values*, by default of the passes of the lightest stage."""
        pairs = zip(values or self.both_s, self.counts, strict=True)
        there = [np.where(count > 0, value, np.inf) for value, count in pairs]
        return np.asarray(np.minimum.reduce(there))


def busy_bound_s(
    schedule: str, chain: Chain, *, virtual_stages: Array, micro_batches: Array
) -> Array:
    """Seconds from the first forward to the last pass, at least."""
    stages = np.asarray(sum(chain.counts))
    pp, m = stages // virtual_stages, micro_batches
    known = SCHEDULES[schedule]
    if known.copies > 1:
        middle = np.maximum(pp // 2 - 1, 0)
        alone = sum(
            count * value
            for count, value in zip(chain.counts, chain.both_s, strict=True)
        )
        there_and_back = alone + 2 * (stages - 1) * chain.transfer_s
        pairs = (_pair(chain, rank, pp - 1 - rank, m / 2) for rank in (0 * pp, middle))
        alike = _both_ways(chain, pp, m)
        return np.asarray(np.maximum.reduce([there_and_back, alike, *pairs]))
    if known.in_v:
        last = pp - 1
        ranks = (0 * pp, last)
        pairs = (_pair(chain, rank, stages - 1 - rank, m) for rank in ranks)
        return np.asarray(np.maximum.reduce([*pairs]))
    rest = (virtual_stages - 1) * chain.least_s()
    first = m * (chain.both_at(0 * pp) + rest)
    ends = [np.minimum(end - 1, pp - 1) for end in accumulate(chain.counts)]
    others = [chain.fill_s(rank) + m * (chain.both_at(rank) + rest) for rank in ends]
    return np.asarray(np.maximum.reduce([first, *others]))


def _both_ways(chain: Chain, pp: Array, micro_batches: Array) -> Array:
    """Chimera of equal stages: each turn of pp micro-batches is as long as its passes,
    and pp − 2 times as long as a backward outlasts a forward. A pipeline of stages that
    are no lighter takes no less, its order being the same."""
    backward_s = tuple(
        both - forward
        for both, forward in zip(chain.both_s, chain.forward_s, strict=True)
    )
    f, b = chain.least_s(chain.forward_s), chain.least_s(backward_s)
    wait = np.maximum(pp - 2, 0) * (f + micro_batches // pp * (b - f))
    return np.where(b >= f, micro_batches * (f + b) + wait, 0.0)


def _pair(chain: Chain, stage: Array, other: Array, each: Array) -> Array:
    """A rank that holds two stages, *each* micro-batches through both."""
    work_s = chain.both_at(stage) + chain.both_at(other)
    return np.asarray(chain.fill_s(np.minimum(stage, other)) + each * work_s)
