"""The timeline once more, action by action on a clock: what the fast one is held to.

The same semantics as `costmodel.timeline.timeline`, spelled out: the full streams
(with their sends, receives, reductions and step) are carried out one action at a time,
each on its resource, which leaves a span for each piece of work.

The clock knows nothing of training. After SimPy's core: the whole state is one heap of
things to do, with ties broken by order of arrival, so that runs repeat exactly.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from heapq import heappop, heappush
from itertools import count

import numpy as np

from costmodel.schedule import (
    RECEIVED,
    Action,
    Kind,
    Program,
    Stream,
    apart,
    copies_held,
    program_of,
    streams,
    with_transfers,
)
from costmodel.timeline.costs import FloatArray, StageCosts
from costmodel.timeline.processor_sharing import speed
from costmodel.timeline.span import Span
from costmodel.timeline.timeline import Timeline
from profiles.errors import InvalidSpec

Act = Callable[[], None]


class Clock:
    """Things to do, each at its time.

    >>> clock = Clock()
    >>> clock.after(2.0, lambda: print("two", clock.now_s))
    >>> clock.after(1.0, lambda: print("one", clock.now_s))
    >>> clock.run()
    one 1.0
    two 2.0
    """

    def __init__(self) -> None:
        self.now_s = 0.0
        self._queue: list[tuple[float, int, Act]] = []
        self._arrival = count()

    def after(self, delay_s: float, act: Act) -> None:
        """Do *act* in *delay_s* seconds. Raises InvalidSpec for the past."""
        if not delay_s >= 0:
            raise InvalidSpec(
                f"a delay of {delay_s} s at {self.now_s} s; time only runs forward, "
                "a delay must be 0 or more"
            )
        heappush(self._queue, (self.now_s + delay_s, next(self._arrival), act))

    def run(self) -> None:
        """Do everything, and what follows from it, until nothing is left."""
        while self._queue:
            self.now_s, _, act = heappop(self._queue)
            act()


class Shared:
    """What several things use at once, each at the `speed` of so many.

    >>> clock = Clock()
    >>> core = Shared(clock, lambda at_work: 1 / at_work)
    >>> core.after(1.0, lambda: print("one", clock.now_s))
    >>> core.after(2.0, lambda: print("two", clock.now_s))
    >>> clock.run()
    one 2.0
    two 3.0
    """

    def __init__(self, clock: Clock, speed: Callable[[int], float]) -> None:
        self._clock, self._speed = clock, speed
        self._left: dict[int, tuple[float, Act]] = {}
        self._since_s = 0.0
        self._plan = 0  # of the last one alone something comes
        self._arrival = count()

    def after(self, duration_s: float, act: Act) -> None:
        """Do *act* after *duration_s* seconds at speed 1."""
        self._pass()
        self._left[next(self._arrival)] = (duration_s, act)
        self._foresee()

    def _pass(self) -> None:
        passed_s = self._clock.now_s - self._since_s
        self._since_s = self._clock.now_s
        if self._left:
            done_s = passed_s * self._speed(len(self._left))
            self._left = {
                number: (left_s - done_s, act)
                for number, (left_s, act) in self._left.items()
            }

    def _foresee(self) -> None:
        self._plan += 1
        if self._left:
            least_s = min(left_s for left_s, _ in self._left.values())
            delay_s = max(least_s, 0.0) / self._speed(len(self._left))
            self._clock.after(delay_s, partial(self._end, self._plan))

    def _end(self, plan: int) -> None:
        if plan != self._plan:
            return
        self._pass()
        first = min(self._left, key=lambda number: self._left[number][0])
        _, act = self._left.pop(first)
        self._foresee()
        act()


class Resource:
    """Serves one request at a time, in the order in which they were made.

    >>> clock = Clock()
    >>> link = Resource(clock, "link")
    >>> link.serve("a", 1.5)
    >>> link.serve("b", 1.0)
    >>> clock.run()
    >>> [(span.label, span.start_s, span.end_s) for span in link.spans]
    [('a', 0.0, 1.5), ('b', 1.5, 2.5)]
    """

    def __init__(self, clock: Clock, name: str) -> None:
        self.name = name
        self.spans: list[Span] = []
        self._clock = clock
        self._busy = False
        self._waiting: deque[tuple[str, float, Act | None, Clock | Shared]] = deque()

    def serve(
        self,
        label: str,
        duration_s: float,
        done: Act | None = None,
        *,
        using: Shared | None = None,
    ) -> None:
        """Ask for *duration_s* seconds, of what it is *using* with others if so; call
        *done* when they are over."""
        self._waiting.append((label, duration_s, done, using or self._clock))
        self._start_next()

    def _start_next(self) -> None:
        if self._busy or not self._waiting:
            return
        self._busy = True
        label, duration_s, done, using = self._waiting.popleft()
        start_s = self._clock.now_s

        def finish() -> None:
            span = Span(
                resource=self.name,
                label=label,
                start_s=start_s,
                end_s=self._clock.now_s,
            )
            self.spans.append(span)
            self._busy = False
            self._start_next()
            if done is not None:
                done()

        using.after(duration_s, finish)


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
    held_by = copies_held(schedule, pp, virtual_stages)
    computing = streams(schedule, pp, virtual_stages, micro_batches)
    at_once = {both.parts[1] for stream in computing for both in stream if both.parts}
    whole = with_transfers([apart(stream) for stream in computing], *held_by)
    run = _Run(costs, held_by, whole, at_once)
    return run.timeline(program), run.spans()


class _Run:
    """A run of all ranks, from its start to its end, and what they share."""

    def __init__(
        self,
        costs: StageCosts,
        held_by: Sequence[Sequence[int]],
        full: Sequence[Stream],
        at_once: set[Action],
    ) -> None:
        self.clock = Clock()
        self.cores = Shared(
            self.clock, partial(speed, costs.turns, costs.messages, len(full))
        )
        self.costs = costs
        self.held_by = held_by
        self.at_once = at_once  # backwards, with a forward
        self.buckets = np.broadcast_to(costs.buckets, len(held_by[0])).tolist()
        self.links: dict[tuple[int, int], Resource] = {}
        self.ranks = [_Rank(self, rank, stream) for rank, stream in enumerate(full)]
        for rank in self.ranks:
            rank.advance()
        self.clock.run()

    def send(self, source: int, action: Action) -> None:
        """Carry what *action* sends over its link, then hand it to its receiver."""
        kind, step = RECEIVED[action.kind]
        stage, forward = action.stage + step, action.kind is Kind.SEND_F
        target = self.held_by[action.copy][stage]
        sends_s = self.costs.send_forward_s if forward else self.costs.send_backward_s
        message = replace(action, kind=kind, stage=stage)
        arrive = partial(self.ranks[target].receive, message)
        self.link(source, target).serve(
            str(action), float(sends_s[action.stage]), arrive
        )

    def link(self, source: int, target: int) -> Resource:
        name = f"rank {source} to {target}"
        return self.links.setdefault((source, target), Resource(self.clock, name))

    def reduced(self) -> None:
        """A rank has its gradients: once all have them, they step."""
        if all(rank.reduce_end_s is not None for rank in self.ranks):
            for rank in self.ranks:
                rank.step()

    def spans(self) -> tuple[Span, ...]:
        of_ranks = [(rank.compute, rank.data_parallel) for rank in self.ranks]
        resources = [one for pair in of_ranks for one in pair] + [*self.links.values()]
        return tuple(span for resource in resources for span in resource.spans)

    def timeline(self, program: Program) -> Timeline:
        ranks = self.ranks
        end_s = _even([rank.ends_s for rank in ranks], ranks)
        return Timeline(
            program=program,
            costs=self.costs,
            start_s=_even([rank.starts_s for rank in ranks], ranks),
            end_s=end_s,
            makespan_s=max(rank.end_s for rank in ranks),
            begin_s=np.zeros(len(ranks)),
            compute_end_s=end_s[:, -1],
            reduce_end_s=np.array([rank.reduce_end_s for rank in ranks]),
            step_start_s=np.array([rank.step_start_s for rank in ranks]),
            rank_end_s=np.array([rank.end_s for rank in ranks]),
            peak_bytes=np.array([rank.peak_bytes for rank in ranks]),
            peak_action=np.array([rank.peak_action for rank in ranks]),
        )


class _Rank:
    """One rank: its stream and how far it is, its resources, its memory."""

    def __init__(self, run: _Run, rank: int, stream: Stream) -> None:
        self.run, self.rank, self.stream = run, rank, stream
        self.clock, self.costs = run.clock, run.costs
        self.compute = Resource(run.clock, f"rank {rank} compute")
        self.data_parallel = Resource(run.clock, f"rank {rank} data parallel")
        self.at, self.computing = 0, False
        self.arrived: set[Action] = set()
        self.starts_s: list[float] = []
        self.ends_s: list[float] = []
        self.alive_bytes, self.peak_bytes, self.peak_action = 0.0, 0.0, 0
        mine = [
            (stage, copy)
            for copy, held_by in enumerate(run.held_by)
            for stage, held in enumerate(held_by)
            if held == rank
        ]
        self.last_backwards = {_last_backward(stream, *one) for one in mine}
        self.buckets_left = sum(run.buckets[stage] for stage, _ in mine)
        self.late_reductions: list[int] = []  # stages, without overlap
        self.at_step = False
        self.reduce_end_s: float | None = None
        self.step_start_s: float | None = None
        self.end_s = 0.0

    # The stream.

    def advance(self) -> None:
        """Carry out the stream up to the next pass, or the next wait."""
        while not self.computing and self.at < len(self.stream):
            action = self.stream[self.at]
            if action.kind in (Kind.RECV_F, Kind.RECV_B):
                if action not in self.arrived:
                    return
                self.arrived.remove(action)
            self.at += 1
            self.start(action)

    def start(self, action: Action) -> None:
        match action.kind:
            case Kind.F | Kind.B | Kind.I | Kind.W:
                self.start_pass(action)
            case Kind.SEND_F | Kind.SEND_B:
                self.run.send(self.rank, action)
            case Kind.REDUCE_GRAD if not self.costs.overlap_reduce:
                self.late_reductions.append(action.stage)
            case Kind.STEP:
                self.reach_step()

    def receive(self, message: Action) -> None:
        self.arrived.add(message)
        self.advance()

    # Passes.

    def start_pass(self, action: Action) -> None:
        duration_s = self.duration_s(action)
        self.computing = True
        self.take_memory(action)
        self.starts_s.append(self.clock.now_s)
        if self.costs.overlap_reduce and action in self.last_backwards:
            buckets = self.run.buckets[action.stage]
            for number in range(1, buckets + 1):
                ready = partial(self.reduce_bucket, action.stage)
                self.clock.after(number * duration_s / buckets, ready)
        self.compute.serve(
            str(action),
            duration_s,
            partial(self.end_pass, action),
            using=self.run.cores,
        )

    def end_pass(self, action: Action) -> None:
        self.computing = False
        self.ends_s.append(self.clock.now_s)
        saved = self.costs.saved_bytes[action.stage]
        kept = self.costs.weight_bytes[action.stage]
        self.alive_bytes -= {
            Kind.B: saved,
            Kind.I: max(saved - kept, 0.0),  # had taken what is more (`take_memory`)
            Kind.W: kept,
        }.get(action.kind, 0.0)
        self.advance()

    def duration_s(self, action: Action) -> float:
        costs, stage = self.costs, action.stage
        hidden_s = costs.hidden_s * (action in self.run.at_once)
        by_kind = {
            Kind.F: costs.forward_s,
            Kind.B: costs.backward_s - hidden_s,
            Kind.I: costs.backward_s - costs.weight_s,
            Kind.W: costs.weight_s,
        }
        return float(by_kind[action.kind][stage])

    def take_memory(self, action: Action) -> None:
        """What a pass needs as it starts; I also what it leaves for W."""
        costs, stage = self.costs, action.stage
        saved, kept = costs.saved_bytes[stage], costs.weight_bytes[stage]
        if action.kind is Kind.F:
            self.alive_bytes += saved
        if action.kind is Kind.I:
            self.alive_bytes += max(kept - saved, 0.0)
        transient_bytes = {
            Kind.F: costs.transient_forward_bytes[stage],
            Kind.W: 0.0,
        }.get(action.kind, costs.transient_backward_bytes[stage])
        if self.alive_bytes + transient_bytes > self.peak_bytes:
            self.peak_bytes = self.alive_bytes + transient_bytes
            self.peak_action = len(self.starts_s)

    # The step's end.

    def reach_step(self) -> None:
        self.at_step = True
        for stage in self.late_reductions:
            for _ in range(self.run.buckets[stage]):
                self.reduce_bucket(stage)
        self.finish_reduction()

    def reduce_bucket(self, stage: int) -> None:
        label = str(Action(kind=Kind.REDUCE_GRAD, stage=stage))
        bucket_s = float(self.costs.reduce_s[stage]) / self.run.buckets[stage]
        self.data_parallel.serve(label, bucket_s, self.end_bucket)

    def end_bucket(self) -> None:
        self.buckets_left -= 1
        self.finish_reduction()

    def finish_reduction(self) -> None:
        if self.at_step and not self.buckets_left:
            self.reduce_end_s = self.clock.now_s
            self.run.reduced()

    def step(self) -> None:
        if self.step_start_s is None:
            self.step_start_s = self.clock.now_s
            step_s = float(self.costs.step_s[self.rank])
            self.compute.serve(str(self.stream[-1]), step_s, self.gather)

    def gather(self) -> None:
        gather_s = float(self.costs.gather_s[self.rank])
        self.data_parallel.serve("gather parameters", gather_s, self.finish)

    def finish(self) -> None:
        self.end_s = self.clock.now_s


def _last_backward(stream: Stream, stage: int, copy: int) -> Action:
    return next(
        one
        for one in reversed(stream)
        if one.kind in (Kind.B, Kind.W) and (one.stage, one.copy) == (stage, copy)
    )


def _even(rows: Sequence[Sequence[float]], ranks: Sequence[_Rank]) -> FloatArray:
    """Rows as an array, the shorter ones filled up with the end of their rank."""
    longest = max(map(len, rows))
    return np.array(
        [
            [*row, *[rank.ends_s[-1]] * (longest - len(row))]
            for row, rank in zip(rows, ranks, strict=True)
        ]
    )
