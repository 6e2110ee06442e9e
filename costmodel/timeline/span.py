"""`Span`: what a resource does, and when; those of a timeline, for a trace."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from costmodel.schedule import Action, Kind
from costmodel.timeline.costs import sends_of
from costmodel.timeline.timeline import Timeline


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """What a resource did, and when."""

    resource: str
    label: str
    start_s: float
    end_s: float


def spans(timeline: Timeline) -> tuple[Span, ...]:
    """Of each rank its compute and its data parallelism, then of each link, in the
    order in which they are first used."""
    of_links = sorted(_sent(timeline), key=lambda one: (one.start_s, one.resource))
    first = {one.resource: None for one in of_links}
    order = {resource: number for number, resource in enumerate(first)}
    return (
        *(
            span
            for rank in range(timeline.program.shape.pp)
            for span in (*_computed(timeline, rank), *_reduced(timeline, rank))
        ),
        *sorted(of_links, key=lambda one: order[one.resource]),
    )


def _actions(timeline: Timeline, rank: int) -> Iterator[tuple[int, Action]]:
    """The passes of *rank*, each with its position in the stream."""
    for position in np.flatnonzero(timeline.program.rows[rank] >= 0).tolist():
        yield position, timeline.program.action(rank, position)


def _computed(timeline: Timeline, rank: int) -> Iterator[Span]:
    resource = f"rank {rank} compute"
    stages = []
    for position, action in _actions(timeline, rank):
        stages.append((action.stage, action.copy))
        yield Span(
            resource=resource,
            label=str(action),
            start_s=float(timeline.start_s[rank, position]),
            end_s=float(timeline.end_s[rank, position]),
        )
    stage, copy = min(stages)
    start_s = float(timeline.step_start_s[rank])
    yield Span(
        resource=resource,
        label=str(Action(kind=Kind.STEP, stage=stage, copy=copy)),
        start_s=start_s,
        end_s=start_s + float(timeline.costs.step_s[rank]),
    )


def _reduced(timeline: Timeline, rank: int) -> Iterator[Span]:
    """Gradients bucket by bucket, as the last backwards make them or after the last;
    then the gathering of parameters."""
    program, costs = timeline.program, timeline.costs
    resource, free_s = f"rank {rank} data parallel", 0.0
    last_s = float(timeline.reduce_end_s[rank])  # sums of buckets may round above it
    buckets = np.broadcast_to(costs.buckets, costs.reduce_s.shape)
    for slot in program.finishing[rank].tolist():
        stage, place = slot % program.shape.stages, program.last_backward[slot]
        count = int(buckets[stage])
        start_s = end_s = timeline.compute_end_s[rank]
        if costs.overlap_reduce:
            start_s, end_s = timeline.start_s.flat[place], timeline.end_s.flat[place]
        for number in range(1, count + 1):
            ready_s = start_s + number * (end_s - start_s) / count
            begin_s = max(float(ready_s), free_s)
            free_s = min(begin_s + float(costs.reduce_s[stage]) / count, last_s)
            label = str(Action(kind=Kind.REDUCE_GRAD, stage=stage))
            yield Span(resource=resource, label=label, start_s=begin_s, end_s=free_s)
    end_s = float(timeline.rank_end_s[rank])
    yield Span(
        resource=resource,
        label="gather parameters",
        start_s=float(timeline.step_start_s[rank] + costs.step_s[rank]),
        end_s=end_s,
    )


def _sent(timeline: Timeline) -> Iterator[Span]:
    """Transfers, each when the one before it on its link is over."""
    program = timeline.program
    links = np.empty_like(program.rows)
    links.ravel()[program.order] = program.links
    seconds = sends_of(timeline.costs, program.shape.copies)[program.rows]
    free_s = [0.0] * program.no_link
    for rank in range(program.shape.pp):
        for position, action in _actions(timeline, rank):
            link = int(links[rank, position])
            if link == program.no_link:
                continue
            kind = Kind.SEND_F if action.kind is Kind.F else Kind.SEND_B
            sent = Action(
                kind=kind,
                stage=action.stage,
                micro_batch=action.micro_batch,
                copy=action.copy,
            )
            start_s = max(float(timeline.end_s[rank, position]), free_s[link])
            free_s[link] = start_s + float(seconds[rank, position])
            yield Span(
                resource=f"rank {rank} to {link % program.shape.pp}",
                label=str(sent),
                start_s=start_s,
                end_s=free_s[link],
            )
