"""The timeline once more, action by action on a clock.

The same semantics as `costmodel.timeline`, spelled out: the full streams (with their
sends, receives, reductions and step) are carried out one action at a time, each on its
resource. It is slower, leaves a span for each piece of work (for a trace), and is what
the fast pass is held equal to.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np

from costmodel.action import Action, Kind, Stream
from costmodel.events import Clock, Resource, Span
from costmodel.program import Program, program_of
from costmodel.schedule import holders, streams
from costmodel.send_receive import with_transfers
from costmodel.stage_costs import StageCosts, require_costs
from costmodel.timeline import Timeline

_OPPOSITE = {Kind.SEND_F: (Kind.RECV_F, 1), Kind.SEND_B: (Kind.RECV_B, -1)}


def simulate_on_clock(
    schedule: str,
    pp: int,
    virtual_stages: int,
    micro_batches: int,
    costs: StageCosts,
) -> tuple[Timeline, tuple[Span, ...]]:
    """Run a schedule at *costs*: the timeline, and what each resource did when.

    Raises as `timeline.simulate`.
    """
    program = program_of(schedule, pp, virtual_stages, micro_batches)
    require_costs(costs, pp, program.shape.stages)
    held_by = holders(schedule, pp, virtual_stages)
    computing = streams(schedule, pp, virtual_stages, micro_batches)
    run = _Run(costs, held_by, with_transfers(computing, held_by))
    return run.timeline(program), run.spans()


class _Run:
    """Everything that the ranks of one run share."""

    def __init__(
        self, costs: StageCosts, held_by: Sequence[int], full: Sequence[Stream]
    ) -> None:
        self.clock = Clock()
        self.costs = costs
        self.held_by = held_by
        self.buckets = np.broadcast_to(costs.buckets, len(held_by)).tolist()
        self.links: dict[tuple[int, int], Resource] = {}
        self.ranks = [_Rank(self, rank, stream) for rank, stream in enumerate(full)]
        for rank in self.ranks:
            rank.advance()
        self.clock.run()

    def link(self, source: int, target: int) -> Resource:
        name = f"rank {source} to {target}"
        return self.links.setdefault((source, target), Resource(self.clock, name))

    def reduced(self) -> None:
        """A rank has its gradients: who may step now?"""
        done = [rank for rank in self.ranks if rank.reduce_end_s is not None]
        if not self.costs.synchronised_step or len(done) == len(self.ranks):
            for rank in done:
                rank.step()

    def spans(self) -> tuple[Span, ...]:
        of_ranks = [(rank.compute, rank.data_parallel) for rank in self.ranks]
        resources = [one for pair in of_ranks for one in pair] + [*self.links.values()]
        return tuple(span for resource in resources for span in resource.spans)

    def timeline(self, program: Program) -> Timeline:
        ranks = self.ranks
        end_s = np.array([rank.ends_s for rank in ranks])
        return Timeline(
            program=program,
            costs=self.costs,
            start_s=np.array([rank.starts_s for rank in ranks]),
            end_s=end_s,
            makespan_s=max(rank.end_s for rank in ranks),
            compute_end_s=end_s[:, -1],
            reduce_end_s=np.array([rank.reduce_end_s for rank in ranks]),
            step_start_s=np.array([rank.step_start_s for rank in ranks]),
            rank_end_s=np.array([rank.end_s for rank in ranks]),
            peak_bytes=np.array([rank.peak_bytes for rank in ranks]),
            peak_action=np.array([rank.peak_action for rank in ranks]),
        )


class _Rank:
    """One rank: its stream, how far it is, its resources and its memory."""

    def __init__(self, run: _Run, rank: int, stream: Stream) -> None:
        self.run, self.rank, self.stream = run, rank, stream
        self.compute = Resource(run.clock, f"rank {rank} compute")
        self.data_parallel = Resource(run.clock, f"rank {rank} data parallel")
        self.at, self.busy = 0, False
        self.arrived: set[Action] = set()
        self.first_forwards = {_first(stream, Kind.F, stage) for stage in self.stages}
        self.last_backwards = {
            _first(stream[::-1], Kind.B, stage) for stage in self.stages
        }
        self.starts_s: list[float] = []
        self.ends_s: list[float] = []
        self.reductions = sum(run.buckets[stage] for stage in self.stages)
        self.after_compute: list[int] = []  # stages to reduce without overlap
        self.computed = False
        self.reduce_end_s: float | None = None
        self.step_start_s: float | None = None
        self.end_s = 0.0
        self.alive_bytes = float(run.costs.static_bytes[rank])
        self.peak_bytes, self.peak_action = self.alive_bytes, 0

    @property
    def stages(self) -> list[int]:
        held_by = self.run.held_by
        return [stage for stage, rank in enumerate(held_by) if rank == self.rank]

    def advance(self) -> None:
        """Carry out the stream up to the next pass, or the next wait."""
        while self.at < len(self.stream):
            action = self.stream[self.at]
            if action.kind in (Kind.RECV_F, Kind.RECV_B):
                if action not in self.arrived:
                    return
                self.arrived.remove(action)
            self.at += 1
            if action.kind in (Kind.F, Kind.B):
                self.start_pass(action)
                return
            if action.kind in _OPPOSITE:
                self.send(action)
            elif action.kind is Kind.REDUCE_GRAD:
                self.after_compute.append(action.stage)
            elif action.kind is Kind.STEP:
                self.end_compute()

    def start_pass(self, action: Action) -> None:
        costs, now_s = self.run.costs, self.run.clock.now_s
        duration_s = self.duration_s(action)
        if action.kind is Kind.F:
            self.alive_bytes += costs.saved_bytes[action.stage]
        if self.alive_bytes + self.transient_bytes(action) > self.peak_bytes:
            self.peak_bytes = self.alive_bytes + self.transient_bytes(action)
            self.peak_action = len(self.starts_s)
        self.starts_s.append(now_s)
        self.busy = True
        if costs.overlap_reduce and action in self.last_backwards:
            buckets = self.run.buckets[action.stage]
            for bucket in range(1, buckets + 1):
                ready = partial(self.reduce_bucket, action.stage)
                self.run.clock.after(bucket * duration_s / buckets, ready)
        self.compute.serve(str(action), duration_s, partial(self.end_pass, action))

    def end_pass(self, action: Action) -> None:
        if action.kind is Kind.B:
            self.alive_bytes -= self.run.costs.saved_bytes[action.stage]
        self.ends_s.append(self.run.clock.now_s)
        self.busy = False
        self.advance()

    def duration_s(self, action: Action) -> float:
        costs, stage = self.run.costs, action.stage
        forward = action.kind is Kind.F
        duration_s = (costs.forward_s if forward else costs.backward_s)[stage]
        if costs.first_forward_extra_s is not None and action in self.first_forwards:
            duration_s += costs.first_forward_extra_s[stage]
        if costs.last_backward_extra_s is not None and action in self.last_backwards:
            duration_s += costs.last_backward_extra_s[stage]
        return float(duration_s)

    def transient_bytes(self, action: Action) -> float:
        costs, forward = self.run.costs, action.kind is Kind.F
        transient = (
            costs.transient_forward_bytes if forward else costs.transient_backward_bytes
        )
        return float(transient[action.stage])

    def send(self, action: Action) -> None:
        costs, (received, step) = self.run.costs, _OPPOSITE[action.kind]
        forward = action.kind is Kind.SEND_F
        send_s = costs.send_forward_s if forward else costs.send_backward_s
        target = self.run.held_by[action.stage + step]
        message = Action(
            kind=received,
            stage=action.stage + step,
            micro_batch=action.micro_batch,
        )
        receiver = self.run.ranks[target]
        self.run.link(self.rank, target).serve(
            str(action), float(send_s[action.stage]), partial(receiver.receive, message)
        )

    def receive(self, message: Action) -> None:
        self.arrived.add(message)
        if not self.busy:
            self.advance()

    def reduce_bucket(self, stage: int) -> None:
        label = str(Action(kind=Kind.REDUCE_GRAD, stage=stage))
        bucket_s = float(self.run.costs.reduce_s[stage]) / self.run.buckets[stage]
        self.data_parallel.serve(label, bucket_s, self.end_bucket)

    def end_bucket(self) -> None:
        self.reductions -= 1
        self.finish_reduction()

    def end_compute(self) -> None:
        self.computed = True
        if not self.run.costs.overlap_reduce:
            for stage in self.after_compute:
                for _ in range(self.run.buckets[stage]):
                    self.reduce_bucket(stage)
        self.finish_reduction()

    def finish_reduction(self) -> None:
        if self.computed and not self.reductions and self.reduce_end_s is None:
            self.reduce_end_s = self.run.clock.now_s
            self.run.reduced()

    def step(self) -> None:
        if self.step_start_s is None:
            self.step_start_s = self.run.clock.now_s
            step_s = float(self.run.costs.step_s[self.rank])
            self.compute.serve(str(self.stream[-1]), step_s, self.gather)

    def gather(self) -> None:
        gather_s = float(self.run.costs.gather_s[self.rank])
        self.data_parallel.serve("gather parameters", gather_s, self.finish)

    def finish(self) -> None:
        self.end_s = self.run.clock.now_s


def _first(stream: Stream, kind: Kind, stage: int) -> Action:
    return next(one for one in stream if one.kind is kind and one.stage == stage)
