"""Candidate layouts: all legal uniform ones of a problem, equal ones once.

A *trunk* fixes the blocks that ranks compute, their number and the depth of the
pipeline; its *branches* fix the schedule, too, so everything but how data parallelism
shards (ZeRO level and group); *leaves* are complete candidates. Rows that mean the same
layout appear once:

    tp = 1             sequence parallelism has nothing to split
    cp = 1             the kind of context parallelism does not matter
    pp = 1             every schedule is the same stream of forwards and backwards
    m = 1              so are 1F1B and GPipe
    one rank a shard   ZeRO with zero_group · cp = 1 shards nothing: it is ZeRO-0

Where a problem is to be executed, what the runtime lacks is no candidate; nor what a
framework does, where it is for one.
Micro-batches are all divisors of global_batch / dp, except where a step would have more
than 4 million passes: no timeline of that length is run. GPipe stays beside 1F1B: it
needs more memory, but where transfers are slow it takes less time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import groupby

import numpy as np

from costmodel.layout import INTEGERS, RECOMPUTES, Columns, Uniform, split_layers
from costmodel.simulation import zero_plus_of
from planner.problem.axes import Axes
from planner.problem.problem import Problem
from planner.problem.table import Option, Table, counts, length, take, widen
from profiles.arrays import Array
from profiles.errors import InvalidSpec

MOST_TRUNKS = 2_000_000  # some 300 MB of columns
ZERO = ("zero", "zero_group")
PIPELINE = ("schedule", "virtual_stages")
_OPENED_BY = ("pp", "micro_batches", "at_once")


@dataclass(frozen=True, kw_only=True)
class Space:
    """The candidates of *problem*."""

    problem: Problem

    @classmethod
    def of(cls, problem: Problem) -> Space:
        """The space of *problem*, the same whoever asks: it is large."""
        found: Space = vars(problem).setdefault("space", cls(problem=problem))
        return found

    def keeping_all(self) -> Space:
        """Of a space whose recompute is free, the candidates that keep everything."""
        pins = replace(self.problem.pins, recompute="none")
        found = Space(problem=self.problem.repinned(pins))
        kept = self.trunks["recompute"] == RECOMPUTES.index("none")
        vars(found)["trunks"] = take(self.trunks, kept)
        return found

    def even(self) -> Space:
        """Of a space whose stages have the layers that pins give, the candidates that
        have them as even as can be."""
        found = Space(problem=self.problem.repinned(self.problem.pins))
        stages = self.branches["pp"] * self.branches["virtual_stages"]
        even = [one for one in np.unique(stages) if self.axes.is_even(int(one))]
        vars(found)["branches"] = take(self.branches, np.isin(stages, even))
        vars(found.problem)["space"] = found
        return found

    @cached_property
    def axes(self) -> Axes:
        return Axes(problem=self.problem)

    @cached_property
    def shapes(self) -> Table:
        """(tp, pp, cp, dp) that fill the GPUs and split the model and the sequence."""
        axes, gpus, pinned = self.axes, self.problem.gpus, self.problem.pins.dp
        free = [np.array(axis, int) for axis in (axes.tp(), axes.pp(), axes.cp())]
        tp, pp, cp = (axis.ravel() for axis in np.meshgrid(*free, indexing="ij"))
        dp = gpus // (tp * pp * cp)
        legal = tp * pp * cp * dp == gpus
        if pinned is not None:
            legal &= dp == pinned
        return self._carried(take({"tp": tp, "pp": pp, "cp": cp, "dp": dp}, legal))

    @cached_property
    def degrees(self) -> Table:
        """The shapes that split the batch too."""
        shapes = self.shapes
        return take(shapes, self.problem.job.global_batch % shapes["dp"] == 0)

    @cached_property
    def trunks(self) -> Table:
        """All choices but the schedule and ZeRO's, with `leaves`: how many candidates
        each holds, and `site`: where their blocks are in `Problem.book`.

        Raises InvalidSpec for more than 2,000,000 of them.
        """
        axes = self.axes
        table = {name: column.astype(np.int32) for name, column in self.degrees.items()}
        table = widen(table, ["ep", "etp"], ["tp", "cp", "dp"], axes.experts)
        table = widen(table, ["micro_batch"], ["dp"], axes.micro_batches)
        share = self.problem.job.global_batch // table["dp"].astype(np.int64)
        table["micro_batches"] = share // table["micro_batch"]
        table = widen(
            table, ["sequence_parallel"], ["tp", "cp"], axes.sequence_parallel
        )
        table = widen(table, ["cp_kind"], ["tp", "cp"], axes.cp_kinds)
        table["site"] = self.problem.book.sites(table).astype(np.int32)
        pipeline = ["pp", "micro_batches"]
        ways = counts(table, pipeline, axes.at_once).sum() * len(axes.recomputes())
        if ways > MOST_TRUNKS:
            raise InvalidSpec(
                f"the space has {ways:,} branches, most {MOST_TRUNKS:,}: pin "
                "--micro-batch or a degree, or choose a batch with fewer divisors"
            )
        table = widen(table, ["at_once"], pipeline, axes.at_once)
        table = widen(table, ["recompute"], [], axes.recomputes)
        table["leaves"] = self._counted(table)
        return take(table, table["leaves"] > 0)

    @cached_property
    def branches(self) -> Table:
        """Those of all trunks."""
        return self.opened(self.trunks)

    def opened(self, trunks: Table, only: int | None = None) -> Table:
        """The branches of *trunks*, or those of the schedule *only*, each with its
        `leaves`."""

        def ways(*where: int) -> list[Option]:
            found = self.axes.schedules(*where)
            return [way for way in found if only in (None, way[0])]

        table = widen(trunks, PIPELINE, _OPENED_BY, ways)
        table["leaves"] = counts(table, self.sharded_by, self.axes.zeros)
        return take(table, table["leaves"] > 0)

    def _counted(self, trunks: Table) -> Array:
        """How many leaves each trunk has."""
        axes = self.axes
        if "schedule" not in self.sharded_by:
            ways = counts(trunks, _OPENED_BY, axes.schedules)
            return np.asarray(ways * counts(trunks, self.sharded_by, axes.zeros))
        widths = [name for name in self.sharded_by if name in ("tp", "ep")]

        def leaves(
            pp: int, m: int, at_once: int, dp: int, cp: int, *more: int
        ) -> list[Option]:
            ways = axes.schedules(pp, m, at_once)
            return [one for way in ways for one in axes.zeros(dp, cp, pp, *way, *more)]

        return counts(trunks, [*_OPENED_BY, "dp", "cp", *widths], leaves)

    def leaves(self, branches: Table) -> Columns:
        """The candidates of *branches*."""
        return self.columns(widen(branches, ZERO, self.sharded_by, self.axes.zeros))

    @property
    def sharded_by(self) -> list[str]:
        """What the levels of ZeRO hang on."""
        found = ["dp", "cp"]
        problem = self.problem
        if problem.executable or problem.runs_on is not None or problem.allow_async:
            found += ["pp", "schedule", "virtual_stages"]
        by_width = problem.runs_on is not None or problem.allow_async
        return found + (["tp", "ep"] if by_width else [])

    def leanest(self, branches: Table) -> tuple[Columns, Array]:
        """Candidates of which one needs the least memory of its branch; whose each is.

        States shrink with the group: the least of each level is at the largest one.
        From one level to the next some states shrink, and layers that are gathered or
        scattered come in.
        """
        return self._by_level(branches, max)

    def fullest(self, branches: Table) -> tuple[Columns, Array]:
        """The same of the most memory."""
        return self._by_level(branches, min)

    def _by_level(
        self, branches: Table, chosen: Callable[[Iterable[Option]], Option]
    ) -> tuple[Columns, Array]:
        def options(*where: int) -> list[Option]:
            by_level = groupby(self.axes.zeros(*where), key=lambda one: one[0])
            return [chosen(group) for _, group in by_level]

        rows = {**branches, "branch": np.arange(length(branches))}
        table = widen(rows, ZERO, self.sharded_by, options)
        return self.columns(table), table["branch"]

    def choice(self, columns: Columns, row: int) -> Uniform:
        """One candidate, with what no column holds."""
        found, first = columns.choice(row), self.problem.pins.recompute_layers
        graph = self.problem.job.graph
        stages = found.pp * found.virtual_stages
        if first is not None and first >= max(
            split_layers(graph.body, stages, graph.tail)
        ):
            first = None  # that is all of them
        return replace(found, recompute_layers=first)

    def _carried(self, shapes: Table) -> Table:
        """Those whose degrees the software combines, where that is asked."""
        if not self.problem.executable and self.problem.runs_on is None:
            return shapes
        rows = zip(*(column.tolist() for column in shapes.values()), strict=True)
        named = (dict(zip(shapes, row, strict=True)) for row in rows)
        return take(shapes, np.array([self.axes.carried(**row) for row in named], bool))

    def columns(self, table: Table) -> Columns:
        """Rows with what all candidates have in common."""
        return Columns(
            **{name: table[name].astype(np.int64) for name in INTEGERS},
            precision=self.problem.precision,
            gradient_format=self.problem.gradient_format,
            flash_attention=self.problem.flash_attention,
            offload=self.problem.offload,
            zero_plus=zero_plus_of(self.problem.pins),
            recomputes=self.problem.recomputes,
        )
