"""The step of a uniform layout in closed form: a lower bound of its simulation.

A pipeline's makespan is at least every path through its dependencies:

    one stage      what comes before it, its m forwards and backwards, what follows
    round trips    under 1F1B a stage starts micro-batch i + p after the backward of i
                   has come back, so every p micro-batches cost one trip there and back
                   (this is where transfers that nothing hides show up)
    both phases    GPipe's forwards all end before its first backward

The step then ends on the rank whose gradients are reduced last. Everything is an
array over candidates; a stage kind stands for all stages like it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
ONE_F_ONE_B, GPIPE, INTERLEAVED = range(3)  # indices into columns.SCHEDULES


@dataclass(frozen=True, slots=True, kw_only=True)
class Kinds:
    """How many numbered layers each kind of virtual stage has, and how many there are.

    Of the middle stages the last `high` have one layer more than the `low` before
    them (`uniform.split_layers`). Where there is one stage only, it is `first`.
    """

    first: Array
    low: Array
    high: Array
    last: Array
    low_count: Array
    high_count: Array


def stage_kinds(body: int, stages: Array) -> Kinds:
    """The split of *body* layers over *stages*, as `uniform.split_layers` does it."""
    base, extra = body // stages, body % stages
    middle = np.maximum(stages - 2, 0)
    high = np.minimum(extra, middle)
    first = base + (extra > middle)
    return Kinds(
        first=first,
        low=base,
        high=base + 1,
        last=np.where(stages > 1, base, 0),
        low_count=middle - high,
        high_count=high,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Passes:
    """Forward and backward seconds of each kind of stage, in pipeline order."""

    forward_s: tuple[Array, ...]
    backward_s: tuple[Array, ...]
    counts: tuple[Array, ...]

    def sums(self, values: tuple[Array, ...], kinds: int = 4) -> Array:
        """Seconds of the first *kinds* kinds together, every stage counted."""
        pairs = zip(self.counts[:kinds], values[:kinds], strict=True)
        return np.asarray(sum(count * value for count, value in pairs))

    @property
    def both_s(self) -> tuple[Array, ...]:
        pairs = zip(self.forward_s, self.backward_s, strict=True)
        return tuple(forward + backward for forward, backward in pairs)


def makespan_s(
    passes: Passes,
    *,
    schedule: Array,
    pp: Array,
    virtual_stages: Array,
    micro_batches: Array,
    transfer_s: Array,
) -> Array:
    """At least the seconds from the first forward to the last backward."""
    m, c = micro_batches, transfer_s
    one_f = np.maximum(_one_stage(passes, m, c), _round_trips(passes, pp, m, c))
    phases = _phase(passes, passes.forward_s, m, c) + _phase(
        passes, passes.backward_s, m, c
    )
    woven = _interleaved(passes, pp, virtual_stages, m, c)
    return np.where(
        schedule == ONE_F_ONE_B, one_f, np.where(schedule == GPIPE, phases, woven)
    )


def _before(passes: Passes, values: tuple[Array, ...], kind: int) -> Array:
    """Seconds of all stages before the last one of *kind*."""
    here = passes.sums(values, kind + 1)
    return np.asarray(here - np.where(passes.counts[kind] > 0, values[kind], 0))


def _one_stage(passes: Passes, m: Array, c: Array) -> Array:
    both = passes.both_s
    most: Array = np.zeros(())
    for kind, count in enumerate(passes.counts):
        stages_before = sum(passes.counts[: kind + 1]) - 1
        path = _before(passes, both, kind) + 2 * stages_before * c + m * both[kind]
        most = np.maximum(most, np.where(count > 0, path, 0))
    return most


def _round_trips(passes: Passes, pp: Array, m: Array, c: Array) -> Array:
    """Trips from the head of a window of stages to the end and back.

    Windows start at the first stage, the first low, the first high and the last high
    one. Under 1F1B stage s holds p − s micro-batches, so that a window of n stages
    makes (m − 1) // n + 1 trips; what is left over passes its slowest stage once more.
    """
    both = passes.both_s
    total, most = passes.sums(both), np.zeros(())
    slowest = _slowest(passes)
    for before, skipped in _windows(passes):
        n = np.maximum(pp - skipped, 1)
        trip = total - before + 2 * (n - 1) * c
        trips, rest = (m - 1) // n, (m - 1) % n
        extra = np.where((skipped == 0) & (trips > 0), slowest, both[3])
        path = before + 2 * skipped * c + (trips + 1) * trip + rest * extra
        most = np.maximum(most, np.where(skipped < pp, path, 0))
    return most


def _windows(passes: Passes) -> Iterator[tuple[Array, Array]]:
    """(seconds before, stages before) of the windows that are tried."""
    both, counts = passes.both_s, passes.counts
    for kind in range(4):
        yield passes.sums(both, kind), np.asarray(sum(counts[:kind], np.asarray(0)))
    last_high = np.maximum(counts[2] - 1, 0)
    yield (
        passes.sums(both, 2) + last_high * both[2],
        counts[0] + counts[1] + last_high,
    )


def _slowest(passes: Passes) -> Array:
    most: Array = np.zeros(())
    for count, both in zip(passes.counts, passes.both_s, strict=True):
        most = np.maximum(most, np.where(count > 0, both, 0))
    return most


def _phase(passes: Passes, values: tuple[Array, ...], m: Array, c: Array) -> Array:
    """Equal jobs through a line of stages: all once, and m − 1 more of the slowest."""
    slowest: Array = np.zeros(())
    for count, value in zip(passes.counts, values, strict=True):
        slowest = np.maximum(slowest, np.where(count > 0, value, 0))
    hops = sum(passes.counts) - 1
    return np.asarray(passes.sums(values) + hops * c + (m - 1) * slowest)


def _interleaved(
    passes: Passes, pp: Array, virtual_stages: Array, m: Array, c: Array
) -> Array:
    """A rank's whole work, after the first arrival and before the last departure."""
    both, v = passes.both_s, virtual_stages
    middle = np.where(passes.counts[1] > 0, both[1], both[2])
    first_rank = m * (both[0] + (v - 1) * middle)
    before = both[0] + np.maximum(pp - 2, 0) * middle + 2 * (pp - 1) * c
    last_rank = before + m * (both[3] + (v - 1) * middle)
    inner = both[0] + np.maximum(pp - 3, 0) * middle + 2 * np.maximum(pp - 2, 0) * c
    middle_rank = np.where(pp > 2, inner + m * v * middle, 0)
    once = passes.sums(both) + 2 * (pp * v - 1) * c
    ends, inside = np.maximum(first_rank, last_rank), np.maximum(middle_rank, once)
    return np.asarray(np.maximum(ends, inside))
