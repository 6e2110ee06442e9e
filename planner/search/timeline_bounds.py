"""Pipelines of unlike stages: the timeline of one bounds all others of its shape.

The closed forms of `costmodel.batched.makespan` follow few paths, and are loose where
a model's layers are of several kinds, dealt out to ranks in turn. A timeline waits for
the largest of sums, so

    T(d) >= l · T(e)    where d >= l · e, pass by pass and transfer by transfer

and the schedule that is run for one candidate bounds all that have the same actions.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from costmodel.batched import Rows, after_passes_s, pipeline_runs
from costmodel.layout import SCHEDULES, Columns
from costmodel.schedule import schedule_called
from costmodel.timeline import StageCosts, simulate
from planner.problem import Problem
from planner.search.bounds import least_rows
from profiles.arrays import Array

MOST_PASSES: Final = 200_000  # of a timeline that is run for this
MOST_KNOWN: Final = 64  # timelines of one shape
ROUNDING: Final = 1 - 1e-9
Shape = tuple[int, int, int, int]  # schedule, pp, virtual stages, micro-batches


@dataclass(frozen=True, slots=True)
class _Known:
    """A timeline: how long it is, and what its actions take, [4, stages]: forward,
    input and weight part of a backward, a transfer."""

    actions_s: Array
    seconds: float


@dataclass(frozen=True, slots=True)
class TimelineBounds:
    """What the timelines that were run say of other candidates."""

    problem: Problem
    _known: dict[Shape, list[_Known]] = field(
        default_factory=lambda: defaultdict(list), init=False
    )

    @property
    def are_tighter(self) -> bool:
        """Whether layers of several kinds take turns, on ranks that share no core."""
        runs = self.problem.job.graph.runs
        return len(runs) > 2 and self.problem.machine.turns == 1.0

    def seconds(self, columns: Columns, late: Callable[[], bool]) -> Array:
        """At least the step time of each row, 0 where no timeline tells; of each shape
        that of the first row is run, unless it is *late*."""
        found = np.zeros(len(columns))
        shape_of = np.array(
            [
                columns.schedule,
                columns.pp,
                columns.virtual_stages,
                self.problem.job.global_batch // columns.dp // columns.micro_batch,
            ]
        )
        shapes, of_row = np.unique(shape_of, axis=1, return_inverse=True)
        for number, (code, pp, chunks, m) in enumerate(shapes.T.tolist()):
            shape = code, pp, chunks, m
            if _is_run(shape) and not late():
                here = np.flatnonzero(of_row.ravel() == number)
                rows = least_rows(self.problem, columns.take(here))
                found[here] = self._makespan_s(shape, rows) + after_passes_s(rows)
        return found

    def _makespan_s(self, shape: Shape, rows: Rows) -> Array:
        actions_s, known = _actions_s(shape, rows), self._known[shape]
        first = actions_s[..., 0]
        new = not any(np.array_equal(first, one.actions_s) for one in known)
        if new and len(known) < MOST_KNOWN:
            known.append(_Known(first, ROUNDING * _timeline_s(shape, first)))
        bounds = [one.seconds * _longer(actions_s, one.actions_s) for one in known]
        return np.asarray(np.maximum.reduce(bounds))


def _is_run(shape: Shape) -> bool:
    code, pp, virtual_stages, micro_batches = shape
    schedule = schedule_called(SCHEDULES[code])
    hides = schedule.copies > 1 or SCHEDULES[code] == "dualpipe-v"
    passes = 3 * pp * virtual_stages * micro_batches
    alone = hides or schedule.stale is not None
    return pp > 1 and not alone and passes <= MOST_PASSES


def _actions_s(shape: Shape, rows: Rows) -> Array:
    """What the actions of each row take, [4, stages, rows]."""
    code, pp, virtual_stages, _ = shape
    runs, splits = pipeline_runs(rows), schedule_called(SCHEDULES[code]).splits
    whole = (len(rows.columns),)

    def each(values: tuple[Array, ...]) -> Array:
        stages = range(pp * virtual_stages)
        found = [runs.at(values, np.full(whole, stage)) for stage in stages]
        return np.array([np.broadcast_to(one, whole) for one in found])

    forward, backward = each(runs.forward_s), each(runs.backward_s)
    weight = each(runs.weight_s) if splits else np.zeros_like(backward)
    sent = np.broadcast_to(runs.transfer_s, forward.shape)
    return np.stack([forward, backward - weight, weight, sent])


def _longer(actions_s: Array, than: Array) -> Array:
    """How many times as long all actions are *than* those of a timeline, at least."""
    there = than > 0
    return np.asarray((actions_s[there] / than[there][:, None]).min(axis=0))


def _timeline_s(shape: Shape, actions_s: Array) -> float:
    """From the first pass to the last one."""
    code, pp, virtual_stages, micro_batches = shape
    forward, inputs, weight, sent = actions_s
    nothing, by_rank = np.zeros_like(forward), np.zeros(pp)
    costs = StageCosts(
        forward_s=forward,
        backward_s=inputs + weight,
        weight_s=weight,
        weight_bytes=nothing,
        hidden_s=nothing,
        send_forward_s=sent,
        send_backward_s=sent,
        saved_bytes=nothing,
        transient_forward_bytes=nothing,
        transient_backward_bytes=nothing,
        reduce_s=nothing,
        step_s=by_rank,
        gather_s=by_rank,
    )
    found = simulate(SCHEDULES[code], pp, virtual_stages, micro_batches, costs)
    return found.makespan_s
