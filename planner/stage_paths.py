"""What 1F1B takes of one partition at the least: the longest of the paths through it
that slow links and slow stages make long.

    along     down to stage s, m passes of it, and up: Σ_{i<s} (t_i + x_i) + m · t_s
    windows   down to stage e; w − 1 passes while it fills, of the slowest up to e; then
              from s to e and back for every e − s + 1 micro-batches, since s sends one
              when that many before it are back; what is left at the slowest stage
    filling   down from s to the end and back, and all that s does once the first one is
    late      a stage's gradient reduction, behind its last backward (`stage_passes`)

with w stages from e to the end. (`costmodel.makespan` has the same paths for runs of
equal stages.) The programme knows windows to the last stage alone: this puts what it
finds into a better order, and what is not below the best is not simulated. Where a
pipeline leaves a domain of its island is a guess, so that no certificate rests on it.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

import numpy as np

from planner.stage_layers import Option
from planner.stage_partition import Array, Part, ways_s
from planner.stage_passes import Passes, without_tied_s


def path_s(
    parts: Sequence[Part],
    options: Sequence[Option],
    passes: Sequence[Passes],
    micro_batches: int,
    tied_s: float = 0.0,
) -> float:
    """Seconds that a step of *parts* takes at least, with the *passes* of each of the
    *options*, but for what is no stage's own: *tied_s* at the two ends, and more."""
    chosen = [(passes[part.option], part) for part in parts]
    there = [_sum(each.forward_s, part) for each, part in chosen]
    back = [_sum(each.backward_s, part) for each, part in chosen]
    reduced = [_sum(each.reduce_s, part) for each, part in chosen]
    if len(parts) == 1:
        reduced[0] -= chosen[0][0].shared_reduce_s
        back[0] -= chosen[0][0].shared_backward_s
    late = [max(r - b, 0.0) for r, b in zip(reduced, back, strict=True)]
    both = [f + b for f, b in zip(there, back, strict=True)]
    ways = ways_s(parts, options)
    before = [0.0, *accumulate(t + x for t, x in zip(both, ways, strict=True))]
    down = [0.0, *accumulate(f + x / 2 for f, x in zip(there, ways, strict=True))]
    longest = 0.0
    for first, taken in enumerate(both):
        longest = max(longest, before[first] + micro_batches * taken)
        reduce_s = down[first] + micro_batches * taken + late[first] - late[0]
        longest = max(longest, reduce_s)
        slowest = taken
        for last in range(first + 1, len(both)):
            slowest = max(slowest, both[last])
            window = before[last] + both[last] - before[first]
            behind = min(len(both) - 1 - last, micro_batches - 1)
            rest = micro_batches - 1 - behind
            times, left = divmod(rest, last - first + 1)
            waited = behind * slowest + (1 + times) * window
            waited += left * (slowest if times else both[last])
            longest = max(longest, before[first] + waited)
        held = min(len(both) - first, micro_batches)
        filled = before[-1] + (micro_batches - 1) * back[first]
        longest = max(longest, filled + (micro_batches - held) * there[first])
    updates = [each.stages_s[3][part.first, part.last] for each, part in chosen]
    updates[1:-1] = without_tied_s(np.array(updates[1:-1]), tied_s)
    return longest + late[0] + float(max(updates))


def _sum(seconds: Array, part: Part) -> float:
    return float(seconds[part.first : part.last + 1].sum())
