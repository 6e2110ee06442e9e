"""What no pipeline's compute can beat: longest paths through its dependencies.

A lower bound of the seconds from a step's first forward to its last backward, before
gradients and the optimizer, for many candidates at once. A pipeline is a few *runs* of
equal stages: the first stage, the middle ones (some with one layer more), the last;
one transfer time serves all boundaries, and nothing loops over stages. Each term is a
path that the schedule has, so the bound holds to rounding whatever the costs; it is
exact for gpipe, and within 1 % for 1f1b and interleaved on nine cases of ten
(`benchmarks/timeline.py`). Of schedules that split backwards, or run in a V or both
ways, `makespan_busy` has a looser one.

A path goes *down* (forwards to the next stage), *up* (backwards), or along one rank's
stream. Stage e of 1f1b turns: after p − 1 − e forwards to fill it, each forward is
followed by a backward. From there a path goes

    along    up to a stage s <= e, whose m micro-batches it passes one by one
    windows  up to s, where the next forward waits for that backward, and down to e
             again: e − s + 1 micro-batches each time, in Σ (f + b) + Σ transfers.
             (This is where transfers that nothing hides show up.)

Here s and e are ends of runs.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import numpy as np
from numpy.typing import NDArray

from costmodel.makespan_busy import Chain, busy_bound_s
from costmodel.makespan_interleaved import Ends, interleaved_bound_s
from costmodel.schedule import SCHEDULES
from profiles.errors import UnknownName

Array = NDArray[Any]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Runs:
    """Runs of equal stages in model order, each an array over candidates.

    The first run is one stage; the last is one too, or none where the pipeline has
    a single stage. A run of no stages is skipped. `transfer_s` is one way. Of a
    backward `weight_s` may be put off, and `hidden_s` goes where a forward runs at the
    same time; left out, they are 0.
    """

    counts: tuple[Array, ...]
    forward_s: tuple[Array, ...]
    backward_s: tuple[Array, ...]
    transfer_s: Array
    weight_s: tuple[Array, ...] = ()
    hidden_s: tuple[Array, ...] = ()

    def columns(self) -> tuple[Array, ...]:
        """All arrays, in the order of the fields."""
        return (*self.counts, *self.forward_s, *self.backward_s, self.transfer_s)

    @property
    def work_s(self) -> Array:
        """One micro-batch through all stages and back."""
        return np.asarray(
            sum(n * both for n, both in zip(self.counts, self.both_s, strict=True))
        )

    @property
    def both_s(self) -> tuple[Array, ...]:
        pairs = zip(self.forward_s, self.backward_s, strict=True)
        return tuple(forward + backward for forward, backward in pairs)

    @property
    def stages(self) -> Array:
        return np.asarray(sum(self.counts))

    def slowest(self, values: tuple[Array, ...]) -> list[Array]:
        """The largest of *values* up to each run, of the runs that are there."""
        pairs = zip(self.counts, values, strict=True)
        there = (np.where(count > 0, value, 0.0) for count, value in pairs)
        return list(accumulate(there, np.maximum))

    def total(self, values: tuple[Array, ...]) -> Array:
        pairs = zip(self.counts, values, strict=True)
        return np.asarray(sum(count * value for count, value in pairs))


def makespan_bound_s(
    schedule: str, runs: Runs, *, virtual_stages: Array, micro_batches: Array
) -> Array:
    """Seconds that the compute of each candidate takes at least.

    All candidates have the same *schedule*; numbers that `schedule.require_schedule`
    refuses are not caught here. Raises UnknownName.
    """
    if schedule not in SCHEDULES:
        raise UnknownName("schedule", schedule, SCHEDULES)
    if schedule == "interleaved":
        return interleaved_bound_s(
            forward=_ends(runs, runs.forward_s),
            backward=_ends(runs, runs.backward_s),
            transfer_s=runs.transfer_s,
            pp=runs.stages // virtual_stages,
            chunks=virtual_stages,
            micro_batches=micro_batches,
        )
    if schedule == "gpipe":
        accumulated = micro_batches * runs.both_s[0]
        phases = _two_phases(runs, micro_batches)
        return np.where(runs.stages > 1, phases, accumulated)
    if schedule == "1f1b":
        return _woven_bound_s(runs, micro_batches)
    nothing = tuple(np.zeros_like(one) for one in runs.forward_s)
    return busy_bound_s(
        schedule,
        Chain(
            counts=runs.counts,
            forward_s=runs.forward_s,
            backward_s=runs.backward_s,
            weight_s=runs.weight_s or nothing,
            hidden_s=runs.hidden_s or nothing,
            transfer_s=runs.transfer_s,
        ),
        virtual_stages=virtual_stages,
        micro_batches=micro_batches,
    )


def _ends(runs: Runs, values: tuple[Array, ...]) -> Ends:
    """The first stage, the last, and the least of those between: a bound of all."""
    pairs = zip(runs.counts[1:-1], values[1:-1], strict=True)
    between = [np.where(count > 0, value, np.inf) for count, value in pairs]
    least = np.minimum.reduce(between)
    middle = np.where(np.isfinite(least), least, 0.0)
    return Ends(first=values[0], middle=middle, last=values[-1])


def _two_phases(runs: Runs, micro_batches: Array) -> Array:
    """GPipe: all forwards, then all backwards, each at the pace of its slowest part."""
    once = runs.total(runs.both_s) + 2 * (runs.stages - 1) * runs.transfer_s
    slowest_f = np.maximum(runs.slowest(runs.forward_s)[-1], runs.transfer_s)
    slowest_b = np.maximum(runs.slowest(runs.backward_s)[-1], runs.transfer_s)
    return np.asarray(once + (micro_batches - 1) * (slowest_f + slowest_b))


def _woven_bound_s(runs: Runs, micro_batches: Array) -> Array:
    """1F1B: candidates whose runs are there alike share their paths."""
    wide = np.broadcast_arrays(*runs.columns(), micro_batches)
    flat, kinds = [np.ravel(item) for item in wide], len(runs.counts)
    pattern = sum((flat[place] > 0) << place for place in range(kinds))
    found = np.empty(flat[0].shape)
    for one in np.unique(pattern):
        rows = np.flatnonzero(pattern == one)
        there = [place for place in range(kinds) if one >> place & 1]
        own = Runs(
            counts=tuple(flat[place][rows] for place in there),
            forward_s=tuple(flat[kinds + place][rows] for place in there),
            backward_s=tuple(flat[2 * kinds + place][rows] for place in there),
            transfer_s=flat[-2][rows],
        )
        found[rows] = _Woven(own, flat[-1][rows]).longest()
    return found.reshape(wide[0].shape)


class _Woven:
    """Paths of 1f1b between the ends of runs, all of which are there."""

    def __init__(self, runs: Runs, micro_batches: Array) -> None:
        self.runs, self.after_first = runs, micro_batches - 1
        self.both, self.round_trip_s = runs.both_s, 2 * runs.transfer_s
        self.last = [total - 1 for total in accumulate(runs.counts)]
        pairs = zip(self.last, runs.counts, strict=True)
        self.first = [last + 1 - count for last, count in pairs]
        self.slowest_f = runs.slowest(runs.forward_s)
        self.slowest_b = runs.slowest(runs.backward_s)
        work = zip(runs.counts, self.both, strict=True)
        self.behind_s = list(accumulate(count * both for count, both in work))

    def longest(self) -> Array:
        most: Array = np.zeros(self.after_first.shape)
        for end in range(len(self.both)):
            slowest = np.zeros(())
            for start in range(end, -1, -1):
                slowest = np.maximum(slowest, self.both[start])
                paths = [self._window(start, end, slowest)]
                paths += [self._along(start, s, end) for s in self._edges(start, end)]
                most = np.maximum.reduce([most, *paths])
        return np.asarray(most)

    def _edges(self, start: int, end: int) -> list[Array]:
        edges = [self.first[start], self.last[start]]
        return edges if start < end else edges[:1]

    def _trip(self, stage: Array) -> Array:
        """Down to *stage* and back, with its own passes."""
        passes = stage * self.round_trip_s
        for both, first, count in zip(
            self.both, self.first, self.runs.counts, strict=True
        ):
            passes = passes + both * np.minimum(np.maximum(stage + 1 - first, 0), count)
        return np.asarray(passes)

    def _to_last(self, run: int) -> Array:
        """The same to the last stage of a run."""
        return np.asarray(self.behind_s[run] + self.last[run] * self.round_trip_s)

    def _to_first(self, run: int) -> Array:
        """The same to the first one."""
        before = self.behind_s[run - 1] if run else 0.0
        return np.asarray(before + self.both[run] + self.first[run] * self.round_trip_s)

    def _fill(self, end: int) -> Array:
        behind = self.runs.stages - 1 - self.last[end]
        return np.asarray(np.minimum(behind, self.after_first))

    def _along(self, start: int, stage: Array, end: int) -> Array:
        fill = self._fill(end)
        pairs = np.maximum(self.after_first - (self.runs.stages - 1 - stage), 0)
        single = self.after_first - pairs
        once = np.maximum(
            fill * self.slowest_f[end] + single * self.slowest_b[start],
            fill * self.slowest_b[end] + single * self.slowest_f[start],
        )
        return np.asarray(self._to_last(end) + pairs * self.both[start] + once)

    def _window(self, start: int, end: int, slowest: Array) -> Array:
        e, fill, trip = self.last[end], self._fill(end), self._to_last(end)
        n = np.maximum(e - self.first[start] + 1, 1)
        rest = self.after_first - fill
        times, left = np.divmod(rest, n)
        window = trip - self._to_first(start) + self.both[start]
        smaller = trip - self._trip(e - left) - self.round_trip_s
        over = np.maximum(
            left * np.where(times > 0, slowest, self.both[end]),
            np.where(left > 0, smaller, 0.0),
        )
        often = times * window + over
        once = np.where(times > 0, window + (rest - n) * slowest, 0.0)
        turns = fill * (self.slowest_f[end] + self.slowest_b[end])
        return np.asarray(trip + turns + np.maximum(often, once))
