"""The schedule run: when each pass of each rank runs, and the memory it needs.

Nothing contends here: each rank's compute serves its stream in order, each directed
pair of ranks has a link that serves sends in the order they are issued, and sends do
not occupy compute. So one pass in a static order, without a heap, gives every time;
`tests/oracles/event_sim.py` gives the same ones on a clock, action by action. (Ranks
that are more than their cores contend for those:
`costmodel.timeline.processor_sharing`.)

    start(a) = max(end of the action before a on its rank, arrival of what a awaits)
    arrival  = max(end of the sender, the link is free) + the transfer's seconds

Gradients are reduced behind the last backward, bucket by bucket. The c seconds of a
stage's reduction are K equal buckets, which the last backward makes ready at equal
intervals from its start t0 to its end t1; a bucket starts when it is ready and the one
before is done:

    end(k) = max(t0 + k·(t1 − t0)/K, end(k − 1)) + c/K,   k = 1 … K

Unrolled, what decides is the last bucket, or the first and all behind it, since what
is linear in k is largest at an end; or a link that was busy until r, and then c:

    end(K) = max(t1 + c/K,  t0 + (t1 − t0)/K + c,  r + c)

Without a flush a step is one of a long run, each rank's from its own update to its next
one (`costmodel.timeline.steady`): ranks are in it at different times, equally long.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from costmodel.schedule import COMPUTE, IntArray, Kind, Program, program_of
from costmodel.timeline.costs import (
    FloatArray,
    StageCosts,
    bytes_after,
    bytes_during,
    seconds_of,
    sends_of,
)
from costmodel.timeline.processor_sharing import run_in_turns
from costmodel.timeline.steady import steady


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """One rank's step, every instant of it counted once."""

    compute_s: float
    pipeline_comm_s: float  # waiting, while the awaited transfer could have run
    bubble_s: float  # waiting for another rank's compute
    reduce_s: float  # gradient reduction after the last backward
    others_s: float  # waiting for the other ranks' gradients before the step
    step_s: float
    gather_s: float
    idle_s: float  # after its own step, until the last rank ends


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Timeline:
    """When each action starts and ends, [pp, actions] in stream order, and the peaks.

    By rank: when its step begins, the end of its compute and of its gradient reduction,
    the start of its optimizer step, its own end, its peak bytes and the position in its
    stream of the (first) action at which they are reached.
    """

    program: Program
    costs: StageCosts
    start_s: FloatArray
    end_s: FloatArray
    makespan_s: float
    begin_s: FloatArray  # 0 where a step is flushed
    compute_end_s: FloatArray
    reduce_end_s: FloatArray
    step_start_s: FloatArray
    rank_end_s: FloatArray
    peak_bytes: FloatArray
    peak_action: IntArray

    def waits(self, rank: int) -> tuple[float, float]:
        """Seconds that *rank* idles between its actions: (for transfers, in bubbles).

        Of a gap before an action that awaits a transfer, as much as the transfer
        itself takes is the transfer's, the rest is bubble.
        """
        gaps = self.start_s[rank].copy()
        gaps[0] -= self.begin_s[rank]
        gaps[1:] -= self.end_s[rank, :-1]
        sends = sends_of(self.costs, self.program.shape.copies)
        transfers = sends[self.program.source_rows[rank]]
        transfer_s = float(np.minimum(gaps, transfers).sum())
        return transfer_s, float(gaps.sum()) - transfer_s

    def hidden_s(self, rank: int) -> float:
        """Seconds that passes of *rank* save by running at once."""
        shape = self.program.shape
        kind, slot = np.divmod(self.program.rows[rank], shape.slots)
        overlapped = slot[kind == COMPUTE.index(Kind.OVERLAP_F_B)] % shape.stages
        return float(self.costs.hidden_s[overlapped].sum())

    def pace(self, rank: int) -> float:
        """What the passes of *rank* take, over their price: less where it takes turns
        with ranks that wait."""
        if self.costs.turns == 1:
            return 1.0
        priced_s = durations_of(self.program, self.costs)[rank].sum()
        took_s = (self.end_s[rank] - self.start_s[rank]).sum()
        return float(took_s / priced_s) if priced_s else 1.0

    def account(self, rank: int) -> Account:
        """Where the seconds of *rank* go."""
        transfer_s, bubble_s = self.waits(rank)
        compute_end_s = float(self.compute_end_s[rank])
        reduce_end_s = float(self.reduce_end_s[rank])
        return Account(
            compute_s=float((self.end_s[rank] - self.start_s[rank]).sum()),
            pipeline_comm_s=transfer_s,
            bubble_s=bubble_s,
            reduce_s=reduce_end_s - compute_end_s,
            others_s=float(self.step_start_s[rank]) - reduce_end_s,
            step_s=float(self.costs.step_s[rank]),
            gather_s=float(self.costs.gather_s[rank]),
            idle_s=self.makespan_s
            + float(self.begin_s[rank])
            - float(self.rank_end_s[rank]),
        )

    def in_flight_at_peak(self) -> IntArray:
        """Micro-batches at each rank's peak whose activations are saved, [pp, stages].

        Of I's pass at the peak too, whose end would free what only I needs.
        """
        return _in_flight(self._done_at_peak()) + self._carried

    def held_at_peak(self) -> FloatArray:
        """Bytes that are alive at each rank's peak beside its pass's working set."""
        done = self._done_at_peak()
        _, _, inputs, weights, _ = done
        costs, shape = self.costs, self.program.shape
        kept = costs.weight_bytes
        held = (_in_flight(done) + self._carried) @ costs.saved_bytes
        held = held + (inputs - weights) @ kept
        more: FloatArray = np.maximum(kept - costs.saved_bytes, 0)
        kind, slot = np.divmod(self.peak_rows(), shape.slots)
        at_inputs = kind == COMPUTE.index(Kind.I)
        return np.asarray(held + np.where(at_inputs, more[slot % shape.stages], 0))

    def most_between(self, each: FloatArray) -> FloatArray:
        """The most of *each* stage's that lie between their forwards and backwards on
        a rank at once, by rank: streams alone decide."""
        shape = self.program.shape
        taken = {Kind.F: each, Kind.B: -each, Kind.I: -each, Kind.OVERLAP_F_B: -each}
        nothing = np.zeros_like(each)
        table = [taken.get(kind, nothing) for kind in COMPUTE]
        rows = np.concatenate([np.tile(one, shape.copies) for one in table] + [[0.0]])
        more = rows[self.program.rows].cumsum(axis=1).max(axis=1)
        return np.asarray(self._carried @ each + more)

    @property
    def _carried(self) -> IntArray:
        """Micro-batches in flight as each rank's step begins, [pp, stages]."""
        shape, carried = self.program.shape, self.program.carried
        found = np.zeros((shape.pp, shape.stages), dtype=np.int64)
        found[:, : shape.pp] = np.diag(carried)
        return found

    def _done_at_peak(self) -> IntArray:
        """Passes done before each rank's peak, [kind, pp, stages], its own F too."""
        rows, shape = self.program.rows, self.program.shape
        ranks, actions = np.arange(len(rows)), np.arange(rows.shape[1])
        before = actions < self.peak_action[:, None]
        at_peak = self.peak_rows()
        before[ranks, self.peak_action] = at_peak < shape.slots
        size = len(COMPUTE) * shape.slots
        places = (ranks[:, None] * size + rows)[before & (rows >= 0)]
        counts = np.bincount(places, minlength=len(rows) * size)
        by_copy = counts.reshape(len(rows), len(COMPUTE), shape.copies, shape.stages)
        return np.asarray(by_copy.sum(axis=2).swapaxes(0, 1))

    def peak_rows(self) -> IntArray:
        """The row of the action at which each rank is at its peak."""
        return np.asarray(
            self.program.rows[np.arange(len(self.peak_action)), self.peak_action]
        )


def _in_flight(done: IntArray) -> IntArray:
    """Micro-batches whose activations are saved, of passes *done* by kind."""
    forward, whole, inputs, _, overlapped = done
    return np.asarray(forward - whole - inputs - overlapped)


def simulate(
    schedule: str,
    pp: int,
    virtual_stages: int,
    micro_batches: int,
    costs: StageCosts,
) -> Timeline:
    """Run a schedule at *costs*, which are those of its stages and ranks.

    Raises as `schedule.require_schedule`.
    """
    program = program_of(schedule, pp, virtual_stages, micro_batches)
    priced = durations_of(program, costs)
    if program.ago:
        return _without_flush(program, costs, priced)
    start, end = _run(program, costs, priced)
    reduce_end = _reduce_ends(program, costs, start, end)
    step_start = np.full(len(reduce_end), reduce_end.max())
    rank_end = step_start + costs.step_s + costs.gather_s
    peak_bytes, peak_action = _peaks(program, costs)
    return Timeline(
        program=program,
        costs=costs,
        start_s=start,
        end_s=end,
        makespan_s=float(rank_end.max()),
        begin_s=np.zeros(len(rank_end)),
        compute_end_s=end[:, -1],
        reduce_end_s=reduce_end,
        step_start_s=step_start,
        rank_end_s=rank_end,
        peak_bytes=peak_bytes,
        peak_action=peak_action,
    )


def _without_flush(program: Program, costs: StageCosts, priced: FloatArray) -> Timeline:
    """A step of each rank's own. What its last backward does not hide of a reduction
    it waits for; of passes that have more of the cores, that is a little more."""
    tail = reduce_tail_s(
        costs.reduce_s,
        costs.backward_s,
        buckets=costs.buckets,
        overlap=costs.overlap_reduce,
    )
    rest = costs.step_s + costs.gather_s
    found = steady(program, costs, priced, np.array([tail, rest]))
    rank_end = found.begin_s + found.period_s
    peak_bytes, peak_action = _peaks(program, costs)
    return Timeline(
        program=program,
        costs=costs,
        start_s=found.start_s,
        end_s=found.end_s,
        makespan_s=found.period_s,
        begin_s=found.begin_s,
        compute_end_s=found.end_s[:, -1],
        reduce_end_s=found.end_s[:, -1] + tail,
        step_start_s=rank_end - rest,
        rank_end_s=rank_end,
        peak_bytes=peak_bytes,
        peak_action=peak_action,
    )


def durations_of(program: Program, costs: StageCosts) -> FloatArray:
    """How long each action takes, in stream order."""
    return np.asarray(seconds_of(costs, program.shape.copies)[program.rows])


def _run(
    program: Program, costs: StageCosts, durations: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """Start and end of each action. One rank never waits: a running sum."""
    if program.shape.pp == 1:
        end = durations.cumsum(axis=1)
        start = np.zeros_like(end)
        start[:, 1:] = end[:, :-1]
        return start, end
    sends = sends_of(costs, program.shape.copies)
    if costs.turns > 1:
        return run_in_turns(program, sends, durations, costs.turns, costs.messages)
    return _queued(program, sends, durations)


def _queued(
    program: Program, sends: FloatArray, durations: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """Start and end of each action; transfers wait for their link."""
    free_s = [0.0] * program.shape.pp
    link_free_s = [0.0] * (program.no_link + 1)
    arrived_s = [0.0]  # for actions that await nothing
    starts: list[float] = []
    begin, arrive = starts.append, arrived_s.append
    steps = zip(
        program.ranks,
        program.awaits,
        program.links.tolist(),
        durations.ravel()[program.order].tolist(),
        sends[program.ordered_rows].tolist(),
        strict=True,
    )
    for rank, awaited, link, duration_s, send_s in steps:
        start_s = free_s[rank]
        ready_s = arrived_s[awaited]
        if ready_s > start_s:
            start_s = ready_s
        begin(start_s)
        free_s[rank] = end_s = start_s + duration_s
        sent_s = link_free_s[link]
        if end_s > sent_s:
            sent_s = end_s
        link_free_s[link] = sent_s = sent_s + send_s
        arrive(sent_s)
    start = np.empty_like(durations)
    start.ravel()[program.order] = starts
    return start, start + durations


def _reduce_ends(
    program: Program, costs: StageCosts, start: FloatArray, end: FloatArray
) -> FloatArray:
    """When each rank has its gradients: stage after stage on its one resource."""
    compute_end, overlap = end[:, -1], costs.overlap_reduce
    copies = program.shape.copies
    last_end = end.ravel()[program.last_backward]
    backward = last_end - start.ravel()[program.last_backward]
    buckets = np.broadcast_to(costs.buckets, costs.reduce_s.shape)
    reduce_s = np.tile(costs.reduce_s, copies)
    tail = reduce_tail_s(
        reduce_s, backward, buckets=np.tile(buckets, copies), overlap=overlap
    )
    free: FloatArray = np.zeros(len(compute_end))
    for slots in program.finishing.T:  # one of each rank
        ready = last_end[slots] if overlap else compute_end
        free = np.maximum(ready + tail[slots], free + reduce_s[slots])
    return np.maximum(compute_end, free)


def _peaks(program: Program, costs: StageCosts) -> tuple[FloatArray, IntArray]:
    """Most bytes alive on each rank, and where: streams alone decide, not time."""
    copies = program.shape.copies
    after = bytes_after(costs, copies)[program.rows].cumsum(axis=1)
    if program.carried.any():
        after += (program.carried * costs.saved_bytes)[:, None]
    after += bytes_during(costs, copies)[program.rows]
    where = after.argmax(axis=1)
    return after[np.arange(len(after)), where], where


def reduce_tail_s(
    reduce_s: ArrayLike,
    backward_s: ArrayLike,
    *,
    buckets: ArrayLike,
    overlap: ArrayLike,
) -> NDArray[Any]:
    """Seconds from the end of the last backward until its gradients are reduced.

    The first two terms of end(K) − t1 above; all of c where nothing is to *overlap*.
    Broadcasts.

    >>> float(reduce_tail_s(2.0, 4.0, buckets=4, overlap=True))
    0.5
    """
    whole_s = np.asarray(reduce_s)
    if not np.any(overlap):
        return whole_s
    bucket_s = whole_s / buckets
    hidden_s = np.asarray(backward_s) * (1 - 1 / np.asarray(buckets))
    behind_s = np.maximum(bucket_s, whole_s - hidden_s)
    return np.where(overlap, behind_s, whole_s)
