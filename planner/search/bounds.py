"""What no leaf of a branch can beat: the pipeline without data parallelism.

    at a glance  the mean work of a rank: all micro-batches through all layers, over
                 the depth of the pipeline                               → rough_s
    seconds      the closed form of the step with nothing to exchange between data-
                 parallel ranks, no transfers and no optimizer           → floor_s
    bytes        the leanest ZeRO of the branch                          → floor_bytes
    a leaf       the columns' closed form                                → leaf_bounds

All are lower bounds of what the simulation says: the first because no pipeline is
faster than its mean rank is busy, the second because every term left out adds time
(laws of `costmodel.batched.makespan`), the third by `Space.leanest`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import inf
from typing import Final

import numpy as np

from costmodel.batched import (
    ColumnPrices,
    Rows,
    Runs,
    leanest_bytes,
    least_node_bytes,
    makespan_s,
    needed_bytes,
    stage_runs,
    step_time_s,
)
from costmodel.layout import AUTO, RECOMPUTES, SCHEDULES, SQRT, Columns
from costmodel.schedule import schedule_called
from costmodel.stages import most_hidden_s
from planner.problem import Problem, Table, length, take
from profiles.arrays import Array

_NONE: Final = RECOMPUTES.index("none")
_FULL: Final = RECOMPUTES.index("full")
_PUTS_OFF: Final = [
    code for code, name in enumerate(SCHEDULES) if schedule_called(name).splits
]
ENDS: Final = ("embedding", "final_norm", "head")
_SECONDS: Final = (
    *("forward_s", "recompute_s", "backward_s", "weight_s"),
    *("forward_expert_s", "recompute_expert_s", "backward_expert_s"),
)


def leaf_bounds(problem: Problem, columns: Columns) -> ColumnPrices:
    """Seconds and bytes that the simulation of each row does not go below."""
    return ColumnPrices(
        step_time_s=leaf_s(problem, columns),
        needed_bytes=leaf_bytes(problem, columns),
    )


def leaf_s(problem: Problem, columns: Columns) -> Array:
    """The seconds alone.

    Where only the first K layers of a stage recompute, a stage is between one that
    recomputes nothing and one that recomputes everywhere; and so it is where that is
    chosen by stage.
    """
    return step_time_s(least_rows(problem, columns))


def least_rows(problem: Problem, columns: Columns) -> Rows:
    """The rows of *columns*, or of what takes no longer than they do."""
    if _in_part(problem):
        columns = _keeping(columns)
    return Rows(columns=columns, book=problem.book)


def leaf_bytes(problem: Problem, columns: Columns) -> Array:
    """The bytes alone; infinite where a node's hosts do not hold what is offloaded.

    Where retention is chosen by stage, those of the leanest choice.
    """
    if problem.pins.recompute == AUTO:
        kept = _keeping(columns)
        least = leanest_bytes(kept, problem.book, problem.machine.framework.footprint)
        if problem.offload.activations:  # of those less may be left to offload
            return least
        return _on_hosts(problem, Rows(columns=kept, book=problem.book), least)
    found = _peaks(problem, columns)
    if problem.pins.recompute_layers is None:
        return found
    return np.minimum(found, _peaks(problem, _keeping(columns)))


def _peaks(problem: Problem, columns: Columns) -> Array:
    rows = Rows(columns=columns, book=problem.book)
    footprint = problem.machine.framework.footprint  # with the margin that is asked
    return _on_hosts(problem, rows, needed_bytes(rows, footprint))


def _on_hosts(problem: Problem, rows: Rows, found: Array) -> Array:
    """*found*, infinite where hosts do not hold what is offloaded."""
    room = problem.host_limit_bytes
    return found if room == inf else np.where(least_node_bytes(rows) > room, inf, found)


def floor_bytes(peak_bytes: Array, branch: Array) -> Array:
    """At least the peak of every leaf of each branch, from those of its leanest.

    *branch* says whose each peak is, as `Space.leanest` gives it.
    """
    least: Array = np.full(branch[-1] + 1, np.inf)
    np.minimum.at(least, branch, peak_bytes)
    return least


def rough_s(
    problem: Problem, branches: Table, between: Callable[[], None] = lambda: None
) -> Array:
    """At least the step time of every leaf of each branch, at a glance: a gather.

    *between* is called after each block is priced: it may raise.
    """
    if not length(branches):
        return np.empty(0)
    site = branches["site"]
    first = np.empty(site.max() + 1, dtype=np.int64)
    first[site] = np.arange(len(site))
    known = np.unique(site)
    codes = np.unique(_recompute(problem, branches))
    every = take(branches, np.repeat(first[known], len(codes)))
    every["recompute"] = np.tile(codes, len(known))
    at_once = branches["at_once"] > 0
    floor = Floor(
        problem=problem,
        table=every,
        recompute=_recompute(problem, every),
        splits=bool(at_once.any()),
    )
    work = np.zeros((4, len(known) * len(codes)))
    for name, count in problem.job.graph.counts.items():
        passes = floor.body(name)
        work[: len(passes)] += count * passes
        between()
    for name in ENDS:
        passes = floor.end(name)
        work[: len(passes)] += passes
        between()
    place = np.empty((2, len(first), len(problem.recomputes)))
    for own, one in zip(place, (work[0] + work[1], work[3]), strict=True):
        own[np.ix_(known, codes)] = one.reshape(len(known), len(codes))
    each, sent = place[:, site, _recompute(problem, branches)]
    if floor.splits:
        each = each - at_once * most_hidden_s(sent, each, problem.machine)
    return np.asarray(each * branches["micro_batches"] / branches["pp"])


def floor_s(problem: Problem, branches: Table) -> Array:
    """At least the step time of every leaf of each branch."""
    return Floor.of(problem, branches).seconds()


def _in_part(problem: Problem) -> bool:
    """Whether some layers may make nothing again where others do."""
    pins = problem.pins
    return pins.recompute_layers is not None or pins.recompute == AUTO


def _keeping(columns: Columns) -> Columns:
    return replace(columns, recompute=np.full_like(columns.recompute, _NONE))


def _splits(branches: Table) -> bool:
    return bool(np.isin(branches["schedule"], _PUTS_OFF).any())


def _recompute(problem: Problem, branches: Table) -> Array:
    """In segments every layer runs again, none less than alone."""
    code = branches["recompute"]
    if _in_part(problem):
        return np.full_like(code, _NONE)
    return np.where(code == SQRT, _FULL, code)


@dataclass(frozen=True, kw_only=True)
class Floor:
    """One bounding of branches: what its steps share."""

    problem: Problem
    table: Table
    recompute: Array
    splits: bool  # whether any of the schedules puts a part of backwards off

    @classmethod
    def of(cls, problem: Problem, branches: Table) -> Floor:
        return cls(
            problem=problem,
            table=branches,
            recompute=_recompute(problem, branches),
            splits=_splits(branches),
        )

    def seconds(self) -> Array:
        table, graph = self.table, self.problem.job.graph
        stages = table["pp"] * table["virtual_stages"]
        runs = stage_runs(graph, stages)
        start, norm, head = (self.end(name) for name in ENDS)
        layers = {name: self.body(name) for name in graph.kinds}
        sides = []
        for side in range(4 if self.splits else 2):
            passes = [
                sum(count * layers[kind][side] for kind, count in run.layers.items())
                for run in runs
            ]
            after = norm[side] + head[side]
            passes[0] = passes[0] + start[side] + (stages == 1) * after
            passes[-1] = passes[-1] + after
            sides.append(tuple(map(np.asarray, passes)))
        forward, backward, *rest = sides
        weight, hidden = rest or ((), ())
        on = self.problem.machine
        return makespan_s(
            Runs(
                forward_s=forward,
                backward_s=backward,
                weight_s=weight,
                hidden_s=tuple(
                    most_hidden_s(sent_s, pass_s, machine=on)
                    for sent_s, pass_s in zip(hidden, backward, strict=False)
                ),
                counts=tuple(run.count for run in runs),
                transfer_s=np.zeros(()),
            ),
            schedule=table["schedule"],
            virtual_stages=table["virtual_stages"],
            micro_batches=table["micro_batches"],
            turns=on.turns,
            pp=table["pp"],
        )

    def body(self, name: str) -> Array:
        """Seconds of a numbered layer: forward, backward; and of a backward what may be
        put off, and its exchange of experts' rows."""
        return self._passes(name, self.problem.recomputes, self.recompute)

    def end(self, name: str) -> Array:
        """Those of another layer, which is never made again."""
        return self._passes(name, ("none",), np.zeros_like(self.recompute))

    def saved_bytes(self, name: str) -> Array:
        """What a numbered layer keeps of a micro-batch."""
        sites, book = self.table["site"], self.problem.book
        kinds = self.problem.recomputes
        found = book.atoms(name, sites, kinds, self.recompute, ("saved_bytes",))
        return np.asarray(found[0])

    def _passes(self, name: str, treatments: tuple[str, ...], chosen: Array) -> Array:
        sites, book = self.table["site"], self.problem.book
        wanted = _SECONDS if self.splits else _SECONDS[:3]
        found = book.atoms(name, sites, treatments, chosen, wanted)
        passes = [found[0], found[1] + found[2]]
        if self.splits:
            passes += [found[3], found[4:].sum(axis=0)]
        return np.stack(passes)
