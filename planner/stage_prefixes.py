"""The least that stages before a suffix take, by how many stages that has.

A stage with w stages behind it has min(w + 1, m) micro-batches in flight, which its
memory must hold. From the most stages to the fewest, the least sum (t + x) over stages
that hold the first k layers on the first d devices, none of which takes too long with
what is before it:

    B(w, k, d) = min over j, mesh of  B(w + 1, j, d − devices) + t(j…k) + x

where B(w + 1, j, d − devices) + m · t + update is below the limit.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import inf
from typing import Any

import numpy as np
from numpy.typing import NDArray

from planner.stages_held import Held, StagesHeld

Array = NDArray[Any]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Prefix:
    """Before a suffix [layers, devices] the least sum there and back, with the way to
    it if that is to another island; of the last stage alone the same."""

    sums_s: Array
    last_s: Array


def prefixes(
    stages: StagesHeld, below_s: float, between: Callable[[], None] = lambda: None
) -> list[Prefix]:
    """[stages behind] → what is before them, of what takes less than *below_s*;
    *between* is called before each number of them, and may raise."""
    layers, units = stages.layers, stages.units
    nothing = np.full((layers + 1, units + 1), inf)
    nothing[0, 0] = 0.0
    found = [Prefix(sums_s=nothing, last_s=np.zeros_like(nothing))]
    for behind in reversed(range(min(layers, units))):
        between()
        before, m = found[-1].sums_s, stages.micro_batches
        found.append(_one_more(stages[behind], before, m, below_s))
    return found[::-1]


def _one_more(held: Held, before: Array, micro_batches: int, below_s: float) -> Prefix:
    sums_s, last_s = np.full_like(before, inf), np.full_like(before, inf)
    sums_s[0, 0] = last_s[0, 0] = 0.0
    units = before.shape[1] - 1
    for kind, ways in held.items():
        if not kind.possible:
            continue
        start, end = units - kind.most, units - kind.fewest
        early_s = before[:-1, None, start : end + 1]
        reached = np.flatnonzero(np.isfinite(early_s).any(axis=(1, 2)))
        early_s = early_s[reached]
        after = slice(start + kind.size, end + kind.size + 1)
        for one in ways if len(reached) else ():
            each = one.both_s[reached, :, None]
            taken_s = micro_batches * each + one.update_s[reached, :, None]
            here_s = np.where(early_s + taken_s < below_s, each, inf)
            here_s[:, :, -1] += kind.ways.crossed_s  # the last of its island
            for known, several in ((sums_s, early_s + here_s), (last_s, here_s)):
                there = known[1:, after]
                np.minimum(there, several.min(axis=0), out=there)
    return Prefix(sums_s=sums_s, last_s=last_s)
