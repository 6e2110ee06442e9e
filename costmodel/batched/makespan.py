"""What no pipeline's compute can beat: longest paths through its dependencies.

A lower bound of the seconds from a step's first forward to its last backward, before
gradients and the optimizer, for many candidates at once. A pipeline is a few *runs* of
equal stages: the first stage, the middle ones (some with one layer more), the last;
one transfer time serves all boundaries, and nothing loops over stages. Each term is a
path that the schedule has, so the bound holds to rounding whatever the costs; it is
exact for gpipe, within 1 % for 1f1b and interleaved on nine cases of ten
(`benchmarks/timeline.py`), and looser for schedules that split backwards, or run in a V
or both ways.

A path goes *down* (forwards to the next stage), *up* (backwards), or along one rank's
stream. Stage e of 1f1b turns: after p − 1 − e forwards to fill it, each forward is
followed by a backward. From there a path goes

    along    up to a stage s <= e, whose m micro-batches it passes one by one
    windows  up to s, where the next forward waits for that backward, and down to e
             again: e − s + 1 micro-batches each time, in Σ (f + b) + Σ transfers.
             (This is where transfers that nothing hides show up.)

Here s and e are ends of runs.

Of schedules that split backwards, or run in pairs, a path comes to a rank, follows its
stream, and leaves it: it is as long as what the rank does in between, and the way there
and on. With *f*, *i* and *w* of a stage and t of a transfer, of rank r of p:

    come    by the first forward: down the stages before it
            by its first gradient: one micro-batch through all stages and back up to
            it, less the forwards that the rank did before
    leave   at its end
            by its last gradient: on to the rank that ends the stream of gradients,
            with the W that this one has left, less those that the rank had left itself

How many passes lie before the first gradient and behind the last one is read off the
streams (`zero_bubble`, `v_schedules`); all else a rank does for every micro-batch. Of
equal stages all is linear in r, so that ends decide: the first rank, the last, and
those at the ends of runs: for zb-h1 m·(f + i + w) + (p − 1)·max(f, i, f + i − w).

Chimera's paths turn at both ends (`_turns`).

Where nothing is flushed a step is a period of a long run, at least what a rank does in
it, and its links; and the trip of a micro-batch down to the last stage and back, in
which the first rank, so many micro-batches ahead, begins one more than those
(`_period_s`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, reduce
from itertools import accumulate
from typing import Final

import numpy as np

from costmodel.batched.makespan_interleaved import Ends, interleaved_bound_s
from costmodel.layout import SCHEDULES as ROW_SCHEDULES
from costmodel.schedule import SCHEDULES, Staleness
from costmodel.timeline import shared_bound_s
from profiles.arrays import Array
from profiles.errors import UnknownName

Values = tuple[Array, ...]  # of each run


@dataclass(frozen=True, kw_only=True, eq=False)
class Runs:
    """Runs of equal virtual stages in model order, each an array over candidates.

    The first run is one stage; the last is one too, or none where the pipeline has
    a single stage. A run of no stages is skipped. `transfer_s` is one way. Of a
    backward `weight_s` may be put off, and `hidden_s` goes where a forward runs at the
    same time; left out, they are 0.
    """

    counts: Values
    forward_s: Values
    backward_s: Values
    transfer_s: Array
    weight_s: Values = ()
    hidden_s: Values = ()

    def only(self, shape: tuple[int, ...], rows: Array, there: Sequence[int]) -> Runs:
        """Of all candidates, which broadcast to *shape*, those of some *rows*, and of
        their runs those that are *there*."""

        def here(item: Array) -> Array:
            return np.asarray(np.ravel(np.broadcast_to(item, shape))[rows])

        def of(values: Values) -> Values:
            return tuple(here(values[place]) for place in there) if values else ()

        return Runs(
            counts=of(self.counts),
            forward_s=of(self.forward_s),
            backward_s=of(self.backward_s),
            weight_s=of(self.weight_s),
            hidden_s=of(self.hidden_s),
            transfer_s=here(self.transfer_s),
        )

    @property
    def columns(self) -> Values:
        """The arrays that every schedule has a use for."""
        return (*self.counts, *self.forward_s, *self.backward_s, self.transfer_s)

    @cached_property
    def starts(self) -> list[Array]:
        """The number of each run's first stage."""
        ends = accumulate(self.counts)
        return [end - count for end, count in zip(ends, self.counts, strict=True)]

    @cached_property
    def placed(self) -> tuple[Array, Array]:
        """First stages and counts, a run a row."""
        return np.array(self.starts), np.array(self.counts)

    @cached_property
    def stages(self) -> Array:
        return np.asarray(sum(self.counts))

    @cached_property
    def input_s(self) -> Values:
        """What of a backward cannot be put off."""
        pairs = zip(self.backward_s, self.weight_s, strict=True)
        return tuple(backward - weight for backward, weight in pairs)

    @cached_property
    def both_s(self) -> Values:
        pairs = zip(self.forward_s, self.backward_s, strict=True)
        return tuple(forward + backward for forward, backward in pairs)

    @property
    def work_s(self) -> Array:
        """One micro-batch through all stages and back."""
        pairs = zip(self.counts, self.both_s, strict=True)
        return np.asarray(sum(count * both for count, both in pairs))

    def slowest(self, values: Values) -> list[Array]:
        """The largest of *values* up to each run, of the runs that are there."""
        pairs = zip(self.counts, values, strict=True)
        there = (np.where(count > 0, value, 0.0) for count, value in pairs)
        return list(accumulate(there, np.maximum))

    def before(self, values: Values, stage: Array) -> Array:
        """The sum of *values* of the stages before *stage*."""
        if len(values) > FEW_RUNS:
            starts, counts = self.placed
            held = np.clip(stage - starts, 0, counts)
            return np.asarray(np.einsum("i...,i...->...", np.array(values), held))
        runs = zip(values, self.starts, self.counts, strict=True)
        return np.asarray(
            sum(
                one * np.minimum(np.maximum(stage - start, 0), count)
                for one, start, count in runs
            )
        )

    def between(self, values: Values, first: Array, end: Array) -> Array:
        """The same of the stages from *first* to *end* - 1."""
        return self.before(values, end) - self.before(values, first)

    def at(self, values: Values, stage: Array) -> Array:
        """That of *stage*."""
        if len(values) > FEW_RUNS:
            starts, _ = self.placed
            run = np.count_nonzero(starts <= stage, axis=0, keepdims=True) - 1
            return np.asarray(np.take_along_axis(np.array(values), run, axis=0)[0])
        found: Array = np.zeros(())
        for one, start in zip(values, self.starts, strict=True):
            found = np.where(stage >= start, one, found)
        return found

    def least(self, values: Values, of: slice = slice(None)) -> Array:
        """The least of *values* of the stages of some runs; 0 where none is there."""
        pairs = zip(values[of], self.counts[of], strict=True)
        there = [np.where(count > 0, value, np.inf) for value, count in pairs]
        found = reduce(np.minimum, there, np.asarray(np.inf))
        return np.asarray(np.where(np.isfinite(found), found, 0.0))

    def fill_s(self, stage: Array) -> Array:
        """Until a first forward reaches *stage*, down the ranks."""
        return np.asarray(self.before(self.forward_s, stage) + stage * self.transfer_s)


FEW_RUNS: Final = 8  # more are summed as one array
MOST_RUNS: Final = 24  # of which all paths are looked at; of more a few


def makespan_s(
    runs: Runs,
    *,
    schedule: Array,
    virtual_stages: Array,
    micro_batches: Array,
    turns: float,
    pp: Array,
) -> Array:
    """At least the seconds from the first forward to the last backward of each row.

    *schedule* holds indices into `costmodel.layout.SCHEDULES`. *turns* ranks share a
    core (`costmodel.timeline.processor_sharing`).
    """
    columns = (*runs.columns, schedule, virtual_stages, micro_batches)
    shape = np.broadcast_shapes(*map(np.shape, columns))
    codes = np.ravel(np.broadcast_to(schedule, shape))
    alone: Array = np.zeros(codes.shape)
    for code in np.unique(codes):
        rows, name = np.flatnonzero(codes == code), ROW_SCHEDULES[int(code)]
        some = (
            runs if SCHEDULES[name].splits else replace(runs, weight_s=(), hidden_s=())
        )
        alone[rows] = makespan_bound_s(
            name,
            some.only(shape, rows, range(len(runs.counts))),
            virtual_stages=np.ravel(np.broadcast_to(virtual_stages, shape))[rows],
            micro_batches=np.ravel(np.broadcast_to(micro_batches, shape))[rows],
        )
    alone = alone.reshape(shape)
    if turns == 1.0:
        return alone
    busy_s = micro_batches * runs.work_s / pp
    return shared_bound_s(alone, busy_s, turns=turns, pp=pp)


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
        pp = runs.stages // virtual_stages
        alike = interleaved_bound_s(
            forward=_ends(runs, runs.forward_s),
            backward=_ends(runs, runs.backward_s),
            transfer_s=runs.transfer_s,
            pp=pp,
            chunks=virtual_stages,
            micro_batches=micro_batches,
        )
        return np.maximum(alike, _busiest_s(runs, pp, micro_batches))
    if schedule == "gpipe":
        accumulated = micro_batches * runs.both_s[0]
        phases = _two_phases(runs, micro_batches)
        return np.where(runs.stages > 1, phases, accumulated)
    if schedule == "1f1b":
        return _woven_bound_s(runs, micro_batches)
    stale = SCHEDULES[schedule].stale
    if stale is not None:
        return _period_s(runs, stale, micro_batches)
    nothing = tuple(np.zeros_like(one) for one in runs.forward_s)
    whole = replace(
        runs, weight_s=runs.weight_s or nothing, hidden_s=runs.hidden_s or nothing
    )
    return _busy_bound_s(schedule, whole, virtual_stages, micro_batches)


def _period_s(runs: Runs, stale: Staleness, micro_batches: Array) -> Array:
    """Without a flush, and without what lies between two steps of a rank."""
    busiest = runs.slowest(runs.both_s)[-1]
    trip = runs.work_s + 2 * (runs.stages - 1) * runs.transfer_s
    begun = stale.ahead(0, runs.stages) + 1
    each = np.maximum(np.maximum(busiest, runs.transfer_s), trip / begun)
    return np.asarray(micro_batches * each)


def _ends(runs: Runs, values: Values) -> Ends:
    """The first stage, the last, and the least of those between: a bound of all."""
    middle = runs.least(values, slice(1, -1))
    return Ends(first=values[0], middle=middle, last=values[-1])


def _two_phases(runs: Runs, micro_batches: Array) -> Array:
    """GPipe: all forwards, then all backwards, each at the pace of its slowest part."""
    once = runs.work_s + 2 * (runs.stages - 1) * runs.transfer_s
    slowest_f = np.maximum(runs.slowest(runs.forward_s)[-1], runs.transfer_s)
    slowest_b = np.maximum(runs.slowest(runs.backward_s)[-1], runs.transfer_s)
    return np.asarray(once + (micro_batches - 1) * (slowest_f + slowest_b))


def _woven_bound_s(runs: Runs, micro_batches: Array) -> Array:
    """1F1B: candidates whose runs are there alike share their paths."""
    shape = np.broadcast_shapes(*map(np.shape, (*runs.columns, micro_batches)))
    counts = [np.ravel(np.broadcast_to(count, shape)) for count in runs.counts]
    batches = np.ravel(np.broadcast_to(micro_batches, shape))
    patterns, of_row = np.unique(np.array(counts) > 0, axis=1, return_inverse=True)
    found = np.empty(batches.shape)
    for number, pattern in enumerate(patterns.T):
        rows = np.flatnonzero(of_row == number)
        there = np.flatnonzero(pattern).tolist()
        found[rows] = _Woven(runs.only(shape, rows, there), batches[rows]).longest()
    return found.reshape(shape)


class _Woven:
    """Paths of 1f1b between the ends of runs, all of which are there; of many runs just
    those that stay in one of them."""

    def __init__(self, runs: Runs, micro_batches: Array) -> None:
        self.runs, self.after_first = runs, micro_batches - 1
        self.both, self.round_trip_s = runs.both_s, 2 * runs.transfer_s
        self.last = [total - 1 for total in accumulate(runs.counts)]
        self.first = runs.starts
        self.slowest_f = runs.slowest(runs.forward_s)
        self.slowest_b = runs.slowest(runs.backward_s)
        work = zip(runs.counts, self.both, strict=True)
        self.behind_s = list(accumulate(count * both for count, both in work))

    def longest(self) -> Array:
        most: Array = np.zeros(self.after_first.shape)
        for end in range(len(self.both)):
            slowest = np.zeros(())
            least = -1 if len(self.both) <= MOST_RUNS else end - 1
            for start in range(end, least, -1):
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
        if len(self.both) > FEW_RUNS:
            return np.asarray(passes + self.runs.before(self.both, stage + 1))
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


def _busy_bound_s(
    schedule: str, runs: Runs, virtual_stages: Array, micro_batches: Array
) -> Array:
    """Seconds from the first forward to the last pass, at least."""
    known, m = SCHEDULES[schedule], micro_batches
    pp = runs.stages // virtual_stages
    if known.copies > 1:
        return _both_ways(runs, pp, m)
    if known.in_v:
        way = _in_v_at_once if schedule == "dualpipe-v" else _in_v
        last = runs.stages - 1
        ends = (np.minimum(one, last - one) for one in _edges(runs))
        paths = [
            path
            for rank in (0 * pp, np.minimum(1, pp - 1), pp - 1, *ends)
            for path in way(runs, rank, pp, m)
        ]
        return np.asarray(np.maximum.reduce(paths))
    ranks = (one % pp for one in _edges(runs))
    paths = [
        path
        for rank in (0 * pp, *ranks)
        for path in _one_way(runs, rank, pp, virtual_stages, m)
    ]
    return np.maximum(np.maximum.reduce(paths), _busiest_s(runs, pp, m))


def _busiest_s(runs: Runs, pp: Array, m: Array) -> Array:
    """Of stages dealt out to ranks in turn, what the rank with the most work takes, and
    the first forward down to it; 0 where stages are alike but for the ends."""
    if len(runs.counts) <= FEW_RUNS:
        return np.zeros(())
    deepest, stages = int(np.max(pp)), runs.stages
    every = np.arange(int(np.max(stages)))
    each = [runs.at(runs.both_s, np.asarray(one)) for one in every]
    both = np.array(np.broadcast_arrays(*each))
    number = np.arange(len(both)).reshape(-1, *[1] * (both.ndim - 1))
    work = m * np.where(number < stages, both, 0.0)
    paths = [
        runs.fill_s(np.minimum(rank, stages)) + (work * (number % pp == rank)).sum(0)
        for rank in range(deepest)
    ]
    return np.asarray(np.maximum.reduce(paths))


def _edges(runs: Runs) -> Iterator[Array]:
    """The last stage of each run, and the first of each run between the ends; of many
    runs the slowest stage alone: any path is a bound."""
    if len(runs.counts) > MOST_RUNS:
        starts, counts = runs.placed
        both = np.where(counts > 0, np.array(runs.both_s), 0.0)
        slowest = both.argmax(axis=0, keepdims=True)
        first = np.take_along_axis(starts, slowest, axis=0)[0]
        yield np.clip(first, 0, runs.stages - 1)
        return
    for start, count in zip(runs.starts, runs.counts, strict=True):
        yield np.clip(start + count - 1, 0, runs.stages - 1)
    for start in runs.starts[2:-1]:
        yield np.clip(start, 0, runs.stages - 1)


def _one_way(runs: Runs, rank: Array, pp: Array, v: Array, m: Array) -> list[Array]:
    """zb-h1 and zb-interleaved: pp − rank forwards of the last chunk, and pp of those
    before it, lie before the first gradient; rank + 1 W behind the last one.

    The first rank's first gradient lets micro-batch pp go down: before it lie pp
    forwards of each chunk, rank + 1 I and a W of the last.
    """
    f, i, w = runs.forward_s, runs.input_s, runs.weight_s
    last = rank + (v - 1) * pp
    several = v > 1

    def own(values: Values) -> Array:
        ends = runs.at(values, rank) + several * runs.at(values, last)
        more = np.maximum(v - 2, 0) * runs.least(values, slice(1, -1))
        return np.asarray(ends + more)

    turn, forward = runs.at(f, last), own(f)
    earlier = pp * several * (forward - turn) + np.minimum(pp - rank, m) * turn
    stages, t = runs.stages, runs.transfer_s
    there = runs.before(f, stages) + (stages - 1) * t
    back = runs.between(i, last + 1, stages) + (stages - 1 - last) * t
    start = np.maximum(runs.fill_s(rank), there + back - earlier)
    up = (v - 1) * pp
    again = there + runs.between(i, up, stages) + (pp - 1) * t + runs.at(w, up)
    earlier = pp * forward + (rank + 1) * runs.at(i, last) + runs.at(w, last)
    again = again + runs.fill_s(rank) - earlier
    start = np.maximum(start, np.where(m > pp, again, 0.0))
    left = np.minimum(rank + 1, m) * runs.at(w, rank) - runs.at(w, 0 * rank)
    on = runs.before(i, rank) + rank * t - left
    return [start + m * (forward + own(i) + own(w)) + np.maximum(on, 0.0)]


def _in_v(runs: Runs, rank: Array, pp: Array, m: Array) -> list[Array]:
    """zb-v: 2·pp − 1 − rank forwards of chunk 0 and rank + 1 of chunk 1 lie before the
    first gradient. Behind the last one of chunk 0 are rank W of chunk 1 and rank + 1 of
    chunk 0; behind the last one of chunk 1, rank of chunk 1, and pp of chunk 0, of
    which pp − rank have their I to come, too."""
    pair = _Pair(runs, rank, pp)
    earlier = np.minimum(2 * pp - 1 - rank, m) * pair.near(runs.forward_s)
    earlier = earlier + np.minimum(rank + 1, m) * pair.far(runs.forward_s)
    path = pair.start_s(earlier) + m * (pair.sum(runs.both_s))
    w = runs.weight_s
    i = runs.input_s
    late = np.clip(m - 2 * pp + 1 + rank, 0, rank) * pair.far(w)
    up = pair.up_s(late + (np.clip(m - pp, 0, rank) + 1) * pair.near(w))
    end = _Pair(runs, pp - 1, pp)
    here = (pp - rank) * pair.near(i) + np.maximum(rank, 1) * pair.far(w)
    here = here + pp * pair.near(w)
    there = end.near(i) + (pp - 1) * end.far(w) + pp * end.near(w)
    down = runs.between(i, pp, 2 * pp - 1 - rank) + there - here
    down = down + (pp - 1 - rank) * runs.transfer_s
    down = np.where(m >= 2 * pp - 1, down, 0.0)  # of fewer, some are left out
    return [path + np.maximum(np.maximum(up, down), 0.0)]


def _in_v_at_once(runs: Runs, rank: Array, pp: Array, m: Array) -> list[Array]:
    """dualpipe-v: as many forwards lie before the first gradient, and on the last rank
    one more; rank + 1 W behind the last one of chunk 0, and behind that of chunk 1 pp
    W, and pp − rank I of chunk 0. A path that leaves by that goes down, turns, and up.
    """
    pair = _Pair(runs, rank, pp)
    behind = pp - 1 - rank
    alone = behind == 0
    earlier = (2 * pp - 1 - rank + alone) * pair.near(runs.forward_s)
    earlier = earlier + (rank + 1) * pair.far(runs.forward_s)
    turns = m - 2 * pp + rank + 1
    hidden = (turns - alone) * pair.far(runs.hidden_s)
    hidden = hidden + (m - pp) * pair.near(runs.hidden_s)
    path = pair.start_s(earlier) + m * pair.sum(runs.both_s) - hidden
    far = np.maximum(rank + 1 - behind, 0) // 2
    w = runs.weight_s
    up = pair.up_s(far * pair.far(w) + (rank + 1 - far) * pair.near(w))
    far, i = (rank + 1) // 2, runs.input_s
    left = (1 + behind) * pair.near(i) + far * pair.far(w) + (pp - far) * pair.near(w)
    round_ = runs.between(i, 0 * pp, 2 * pp - 1 - rank) + runs.at(w, 0 * pp)
    round_ = round_ + (pp - 1 + behind) * runs.transfer_s - left
    return [path + np.maximum(np.maximum(up, round_), 0.0)]


@dataclass(frozen=True, slots=True)
class _Pair:
    """The two stages of a *rank* of a V: the near one, and the far one on the way
    back."""

    runs: Runs
    rank: Array
    pp: Array

    def near(self, values: Values) -> Array:
        return self.runs.at(values, self.rank)

    def far(self, values: Values) -> Array:
        return self.runs.at(values, 2 * self.pp - 1 - self.rank)

    def sum(self, values: Values) -> Array:
        return self.near(values) + self.far(values)

    def start_s(self, earlier: Array) -> Array:
        """Until the rank does all that it does, less *earlier*, that it did before its
        first gradient."""
        runs, pp, rank = self.runs, self.pp, self.rank
        there = runs.before(runs.forward_s, runs.stages)
        back = runs.between(runs.input_s, runs.stages - rank, runs.stages)
        sent = (2 * (pp - 1) + rank) * runs.transfer_s
        return np.asarray(np.maximum(runs.fill_s(rank), there + back + sent - earlier))

    def up_s(self, left: Array) -> Array:
        """On by the last gradient to the first rank and its one W, less the W that were
        *left* here."""
        runs, rank = self.runs, self.rank
        way = runs.before(runs.input_s, rank) + rank * runs.transfer_s
        return np.asarray(way + runs.at(runs.weight_s, 0 * rank) - left)


def _both_ways(runs: Runs, pp: Array, micro_batches: Array) -> Array:
    """Chimera: the first rank, one in the middle, a micro-batch alone, and `_turns`."""
    m, stages = micro_batches, runs.stages
    middle = np.maximum(pp // 2 - 1, 0)
    alone = runs.before(runs.both_s, stages) + 2 * (stages - 1) * runs.transfer_s
    pairs = [
        runs.fill_s(np.minimum(rank, pp - 1 - rank))
        + m / 2 * (runs.at(runs.both_s, rank) + runs.at(runs.both_s, pp - 1 - rank))
        for rank in (0 * pp, middle)
    ]
    return np.asarray(np.maximum.reduce([alone, _turns(runs, pp, m), *pairs]))


def _turns(runs: Runs, pp: Array, m: Array) -> Array:
    """Of turns of pp micro-batches: down once, and in each turn the passes of the first
    rank, and backwards through all between the ends, down and up again.

    What is left over goes down as far as it fills the pipeline, and up. Or it takes
    what it would if all stages were as light as the lightest, of which a backward's
    outlasting a forward hides some.
    """
    turns, over = np.divmod(m, pp)
    f, b = runs.forward_s, runs.backward_s
    ends = [runs.at(one, 0 * pp) + runs.at(one, pp - 1) for one in (f, b)]
    between = runs.before(b, runs.stages) - ends[1]
    two = pp == 2  # nothing between: a turn goes to the other end and back
    hops = pp - 1 - two + turns * np.where(two, 2, 2 * (pp - 2))
    whole = runs.before(f, pp) + (turns - 1) * ends[0] + hops * runs.transfer_s
    whole = whole + turns * (ends[1] + 2 * between)
    forward, backward = runs.least(f), runs.least(b)
    longer = backward - forward
    rest = (m + pp - 1) * (forward + backward) - over * forward - longer
    rest = rest + turns * (pp - 2) * longer
    hidden = np.minimum(forward, (pp - over) / 2 * longer)
    rest = rest - np.where(turns > 0, hidden, 0.0)
    deep = np.maximum((pp + over) // 2 - 2, 0)
    again = runs.at(f, pp - 1) + runs.before(b, deep + 1)
    again = again + runs.between(b, pp - 1 - deep, pp) + 2 * deep * runs.transfer_s
    rest = np.maximum(
        np.where(longer >= 0, rest, 0.0), np.where(turns > 0, whole + again, 0.0)
    )
    return np.where(over > 0, rest, whole)
