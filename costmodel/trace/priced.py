"""A simulated step as a trace: where each second of each pipeline rank goes.

The slices of a process whose category is no `HIDDEN` one cover the step without gap or
overlap, on the streams below, and those of a category sum to `breakdown_s`. Within a
pass its parts are laid one after another; on a device they alternate layer by layer.

    actions              the schedule: passes, waits (RECV), reductions, STEP
    compute              forward, backward, recomputation, the optimizer
    tp, cp, ep, dp, pp   communication that compute does not hide, waits for messages
    copy                 copies to and from the host that compute does not hide
    idle                 the bubble
    dp behind compute    gradient buckets that the last backwards hide
    pp to 3              messages to pipeline rank 3
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import zip_longest
from typing import Any, Final

import numpy as np

from costmodel.layout import Layout
from costmodel.schedule import COMPUTE, Action, Kind
from costmodel.simulation import Estimate
from costmodel.timeline import Span, Timeline, sends_of, spans
from costmodel.trace.events import ACTIONS, Counter, Slice, Trace, about
from costmodel.trace.memory import memory_levels
from profiles.arrays import Array

HIDDEN: Final = "hidden"
STREAMS: Final = {  # by part of the breakdown
    "compute": "compute",
    "recompute": "compute",
    "optimizer": "compute",
    "tensor_comm": "tp",
    "context_comm": "cp",
    "expert_comm": "ep",
    "data_comm": "dp",
    "pipeline_comm": "pp",
    "offload": "copy",
    "bubble": "idle",
}
BEHIND: Final = "dp behind compute"
_ORDER: Final = (  # of the parts of a pass
    *("data_comm", "recompute", "compute", "context_comm", "expert_comm"),
    *("tensor_comm", "offload", "pipeline_comm"),
)
_SENT: Final = {Kind.F: Kind.SEND_F}
_RECEIVED: Final = {Kind.F: Kind.RECV_F}


def priced_trace(estimate: Estimate) -> Trace:
    """The step of *estimate*, a process for each pipeline rank."""
    timeline, layout = estimate.timeline, estimate.layout
    links: dict[int, list[Span]] = {}
    reduced: dict[int, list[Span]] = {}
    for span in spans(timeline):
        _, number, *other = span.resource.split()
        if other[0] == "to":
            links.setdefault(int(number), []).append(span)
        elif other[0] == "data":
            reduced.setdefault(int(number), []).append(span)
    slices: list[Slice] = []
    counters: list[Counter] = []
    processes = {}
    for rank in range(layout.pp):
        own = _Rank(estimate, rank, reduced.get(rank, []))
        held = _held(layout, rank)
        each = layout.stages[held[0]].mesh.size
        processes[rank] = f"stage {', '.join(map(str, held))} (on {each:,} GPUs)"
        slices += own.slices()
        slices += _transfers(rank, links.get(rank, []))
        counters += _memory(estimate, rank)
    return Trace(
        processes=processes,
        about=about(estimate.job, layout, "simulate"),
        slices=[one for one in slices if one.seconds > 0],
        counters=counters,
        threads=(ACTIONS, *dict.fromkeys(STREAMS.values()), BEHIND),
    )


def _transfers(rank: int, sent: list[Span]) -> Iterator[Slice]:
    for span in sent:
        yield Slice(
            process=rank,
            thread=f"pp to {span.resource.split()[-1]}",
            name=span.label,
            category=HIDDEN,
            start_s=span.start_s,
            end_s=span.end_s,
        )


def _memory(estimate: Estimate, rank: int) -> Iterator[Counter]:
    time, level = memory_levels(estimate, rank)
    low = level[np.r_[True, level[1:] != level[:-1]]]
    when = time[np.r_[True, level[1:] != level[:-1]]]
    for time_s, size in zip(when.tolist(), low.tolist(), strict=True):
        yield Counter(
            process=rank, name="memory", time_s=time_s, values={"GiB": float(size)}
        )


@dataclass(frozen=True)
class _Rank:
    """One pipeline rank of a step; *reduced* are its gradient buckets."""

    estimate: Estimate
    rank: int
    reduced: list[Span]

    @property
    def timeline(self) -> Timeline:
        return self.estimate.timeline

    @cached_property
    def pace(self) -> float:
        return self.timeline.pace(self.rank)

    def slices(self) -> Iterator[Slice]:
        """Everything that this rank does, but for its messages."""
        timeline, program = self.timeline, self.timeline.program
        rows, sources = program.rows[self.rank], program.source_rows[self.rank]
        sends = sends_of(timeline.costs, program.shape.copies)
        before_s = 0.0
        positions = np.flatnonzero(rows >= 0).tolist()
        for position, after in zip_longest(positions, positions[1:]):
            action = program.action(self.rank, position)
            start_s = float(timeline.start_s[self.rank, position])
            end_s = float(timeline.end_s[self.rank, position])
            if start_s > before_s:
                source = int(sources[position])
                transfer_s = float(sends[source]) if source >= 0 else 0.0
                yield from self._wait(action, before_s, start_s, transfer_s)
            parts = self._parts(int(rows[position]), end_s - start_s)
            if after is not None:
                parts = self._beside(parts, int(rows[after]))
            yield from self._passed(parts, action, start_s, end_s)
            before_s = end_s
        yield from self._ends()

    def _slice(
        self, name: str, part: str, start_s: float, end_s: float, thread: str = ""
    ) -> Slice:
        return Slice(
            process=self.rank,
            thread=thread or STREAMS[part],
            name=name,
            category=part,
            start_s=start_s,
            end_s=max(start_s, end_s),
        )

    def _action(self, action: Any, start_s: float, end_s: float) -> Slice:
        return self._slice(str(action), "action", start_s, end_s, ACTIONS)

    def _wait(
        self, action: Action, start_s: float, end_s: float, transfer_s: float
    ) -> Iterator[Slice]:
        """Before *action*: of the gap as much as the awaited message takes is its."""
        kind = _RECEIVED.get(action.kind, Kind.RECV_B)
        awaited = replace(action, kind=kind)
        yield self._action(awaited, start_s, end_s)
        turn_s = max(end_s - transfer_s, start_s)
        yield self._slice("bubble", "bubble", start_s, turn_s)
        yield self._slice(str(awaited), "pipeline_comm", turn_s, end_s)

    def _passed(
        self,
        seconds: Mapping[str, float],
        action: Action,
        start_s: float,
        end_s: float,
    ) -> Iterator[Slice]:
        sent_s = seconds["pipeline_comm"]
        yield self._action(action, start_s, end_s - sent_s)
        if sent_s > 0:
            sent = replace(action, kind=_SENT.get(action.kind, Kind.SEND_B))
            yield self._action(sent, end_s - sent_s, end_s)
        at_s = start_s
        for part in _ORDER:
            if seconds[part] <= 0:
                continue
            until_s = at_s + seconds[part]
            name = str(action) if part == "compute" else f"{action} {part}"
            yield self._slice(name, part, at_s, min(until_s, end_s))
            at_s = until_s

    def _parts(self, row: int, took_s: float) -> dict[str, float]:
        """What a pass of *row* that took so long is made of."""
        if row not in self._priced:
            self._priced[row] = self._beside_compute(row)
        found = self._priced[row]
        whole = self.pace * sum(found.values())
        within = self.pace * min(1.0, took_s / whole) if whole > 0 else 1.0
        found = {name: within * value for name, value in found.items()}
        found["compute"] = max(took_s - sum(found.values()), 0.0)
        return found

    @cached_property
    def _priced(self) -> dict[int, dict[str, float]]:
        return {}

    def _beside_compute(self, row: int) -> dict[str, float]:
        """The parts of a pass of *row* as priced, without its compute."""
        shape, costs = self.timeline.program.shape, self.timeline.costs
        kind, slot = divmod(row, shape.slots)
        stage, passed = slot % shape.stages, COMPUTE[kind]
        found = dict.fromkeys(_ORDER, 0.0)
        parts = self.estimate.parts
        found |= _at(parts.forward_s if passed is Kind.F else parts.backward_s, stage)
        if passed is Kind.OVERLAP_F_B:
            found["expert_comm"] = max(found["expert_comm"] - self._hidden_s(stage), 0)
        elif passed in (Kind.I, Kind.W):  # what fits into I is I's, the rest W's
            whole = sum(found.values())
            inputs_s = float(costs.backward_s[stage] - costs.weight_s[stage])
            first = min(1.0, inputs_s / whole) if whole > 0 else 1.0
            share = first if passed is Kind.I else 1 - first
            found = {name: share * value for name, value in found.items()}
        return found

    def _hidden_s(self, stage: int) -> float:
        return float(self.timeline.costs.hidden_s[stage])

    def _beside(self, parts: dict[str, float], after: int) -> dict[str, float]:
        """The *parts* of a forward beside which a backward of row *after* runs: what
        that hides beyond its own exchange of experts is the forward's."""
        shape = self.timeline.program.shape
        kind, slot = divmod(after, shape.slots)
        if COMPUTE[kind] is not Kind.OVERLAP_F_B:
            return parts
        stage = slot % shape.stages
        own_s = _at(self.estimate.parts.backward_s, stage)["expert_comm"]
        more_s = self.pace * max(self._hidden_s(stage) - own_s, 0.0)
        more_s = min(more_s, parts["expert_comm"])
        return {
            **parts,
            "expert_comm": parts["expert_comm"] - more_s,
            "compute": parts["compute"] + more_s,
        }

    def _ends(self) -> Iterator[Slice]:
        """From the last pass to the end of the step."""
        timeline, rank = self.timeline, self.rank
        passed_s = float(timeline.compute_end_s[rank])
        reduced_s = float(timeline.reduce_end_s[rank])
        begin_s = float(timeline.step_start_s[rank])
        stepped_s = begin_s + float(timeline.costs.step_s[rank])
        ends_s = float(timeline.rank_end_s[rank])
        *buckets, _ = self.reduced
        for name, first_s, last_s in _joined(buckets, passed_s):
            yield self._action(name, first_s, last_s)
        for one in buckets:
            hidden_s = min(one.end_s, passed_s)
            yield self._slice(one.label, HIDDEN, one.start_s, hidden_s, BEHIND)
        yield self._slice("reduce gradients", "data_comm", passed_s, reduced_s)
        yield self._slice("bubble", "bubble", reduced_s, begin_s)
        step = Action(kind=Kind.STEP, stage=_held(self.estimate.layout, rank)[0])
        yield self._action(step, begin_s, ends_s)
        copied_s = begin_s + float(self.estimate.parts.step_copies_s[rank])
        yield self._slice("copy states", "offload", begin_s, copied_s)
        yield self._slice(str(step), "optimizer", copied_s, stepped_s)
        yield self._slice("gather parameters", "data_comm", stepped_s, ends_s)
        yield self._slice("bubble", "bubble", ends_s, timeline.makespan_s)


def _held(layout: Layout, rank: int) -> list[int]:
    """The virtual stages of a pipeline rank."""
    return [n for n, stage in enumerate(layout.stages) if rank in stage.held_by]


def _at(parts: Mapping[str, Array], stage: int) -> dict[str, float]:
    return {
        name: float(np.atleast_1d(seconds)[stage]) for name, seconds in parts.items()
    }


def _joined(buckets: list[Span], after_s: float) -> Iterator[tuple[str, float, float]]:
    """Each stage's buckets *after_s* as one."""
    ends: dict[str, tuple[float, float]] = {}
    for one in buckets:
        if one.end_s > after_s:
            first_s, _ = ends.get(one.label, (max(one.start_s, after_s), 0.0))
            ends[one.label] = first_s, one.end_s
    for label, (first_s, last_s) in ends.items():
        yield label, first_s, last_s
