"""Which layout for which batches of a ramp.

    minimise    Σ_b n(b) · T(l(b), b) + R · (times that l changes)     → phases

n(b) steps of batch b, each of T seconds with the layout l(b), infinite where it cannot
run; R seconds to stop, plan and start again. One pass over the batches: the best way to
have reached a batch with each of L layouts. O(B · L) with B batches.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from math import inf


@dataclass(frozen=True, slots=True, kw_only=True)
class Phase:
    """Batches that one layout (by its number) trains with, one after the other."""

    layout: int
    batches: tuple[int, ...]
    seconds: float


def phases(
    steps: Mapping[int, float], times_s: Sequence[Mapping[int, float]], replan_s: float
) -> list[Phase] | None:
    """The best phases of so many *steps* of each batch, in order; *times_s* are those
    of each layout. None where some batch has no layout.

    >>> fast, general = {8: inf, 16: 1.0}, {8: 2.0, 16: 1.5}
    >>> [one.layout for one in phases({8: 10, 16: 100}, [fast, general], replan_s=5)]
    [1, 0]
    >>> [one.layout for one in phases({8: 10, 16: 100}, [fast, general], replan_s=60)]
    [1]
    """
    reached = [0.0] * len(times_s)
    before: list[list[int]] = []
    for batch, count in steps.items():
        best = min(range(len(reached)), key=reached.__getitem__)
        last = list(range(len(reached)))
        for layout in range(len(reached)):
            other_s = reached[best] + (replan_s if before else 0.0)
            if other_s < reached[layout]:
                reached[layout], last[layout] = other_s, best
        before.append(last)
        for layout, own in enumerate(times_s):
            reached[layout] += count * own[batch] if batch in own else inf
    layout = min(range(len(reached)), key=reached.__getitem__)
    if reached[layout] == inf:
        return None
    taken = []
    for last in reversed(before):
        taken.append(layout)
        layout = last[layout]
    return _joined(dict(zip(steps, reversed(taken), strict=True)), steps, times_s)


def _joined(
    taken: Mapping[int, int],
    steps: Mapping[int, float],
    times_s: Sequence[Mapping[int, float]],
) -> list[Phase]:
    found = []
    for layout, group in groupby(taken, key=taken.__getitem__):
        batches = tuple(group)
        seconds = sum(steps[one] * times_s[layout][one] for one in batches)
        found.append(Phase(layout=layout, batches=batches, seconds=seconds))
    return found
