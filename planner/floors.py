"""What no leaf of a branch can beat: the pipeline without data parallelism.

    seconds    the closed form of the step with nothing to exchange between data-
               parallel ranks, no transfers and no optimizer            → floor_s
    bytes      the leanest ZeRO of the branch                           → floor_bytes
    a leaf     the columns' closed form                                 → leaf_bounds

All are lower bounds of what the simulation says: the first because every term left
out adds time (laws of `costmodel.closed_form`), the second by `Space.leanest`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from costmodel.atoms import Atom, atom, block_prices
from costmodel.closed_form import Passes, makespan_s
from costmodel.columns import RECOMPUTES, Columns
from costmodel.atom_book import PLACE
from costmodel.grid import ColumnPrices, price
from costmodel.layer_runs import stage_runs
from costmodel.layout import CP_KINDS
from costmodel.retention import preset
from costmodel.sharding import Degrees
from planner.problem import Problem
from planner.table import Array, Table
from profiles.precision import Precision, precision

_NONE = RECOMPUTES.index("none")


def leaf_bounds(problem: Problem, columns: Columns) -> ColumnPrices:
    """Seconds and bytes that the simulation of each row does not go below.

    Where only the first K layers of a stage recompute, a stage is between one that
    recomputes nothing and one that recomputes everywhere.
    """
    found = price(columns, problem.job, problem.machine)
    if problem.pins.recompute_layers is None:
        return found
    nothing = replace(columns, recompute=np.full_like(columns.recompute, _NONE))
    least = price(nothing, problem.job, problem.machine)
    return ColumnPrices(
        step_time_s=least.step_time_s,
        peak_memory_bytes=np.minimum(found.peak_memory_bytes, least.peak_memory_bytes),
    )


def floor_bytes(peak_bytes: Array, branch: Array) -> Array:
    """At least the peak of every leaf of each branch, from those of its leanest.

    *branch* says whose each peak is, as `Space.leanest` gives it.
    """
    least: Array = np.full(branch[-1] + 1, np.inf)
    np.minimum.at(least, branch, peak_bytes)
    return least


def floor_s(problem: Problem, branches: Table) -> Array:
    """At least the step time of every leaf of each branch."""
    return _Floor(problem=problem, table=branches).seconds()


def _exchanged(priced: Atom) -> Array:
    forward, again = priced.forward_expert_s, priced.recompute_expert_s
    return np.asarray(forward + again + priced.backward_expert_s)


@dataclass(frozen=True, kw_only=True)
class _Floor:
    """One bounding of branches: what its steps share."""

    problem: Problem
    table: Table

    @cached_property
    def policy(self) -> Precision:
        problem = self.problem
        return precision(problem.precision, gradient=problem.gradient_format)

    @cached_property
    def combos(self) -> tuple[Array, Array]:
        """Distinct places as columns, and each branch's among them."""
        keys = [self.table[name] for name in PLACE]
        packed = np.ravel_multi_index(keys, [int(key.max()) + 1 for key in keys])
        _, first, place = np.unique(packed, return_index=True, return_inverse=True)
        return np.stack([key[first] for key in keys]), place

    @cached_property
    def variant(self) -> Array:
        """(kind of cp, sequence parallel) as one number."""
        table = self.table
        return np.asarray(table["cp_kind"] * 2 + table["sequence_parallel"])

    def seconds(self) -> Array:
        table = self.table
        graph = self.problem.job.graph
        stages = table["pp"] * table["virtual_stages"]
        runs = stage_runs(graph, stages)
        start, tail = self._ends
        layers = {
            block.name: self._passes(block.name, self._recompute)
            for block, _ in graph.runs
        }
        sides = []
        for side in (0, 1):
            passes = [
                sum(count * layers[kind][side] for kind, count in run.layers.items())
                for run in runs
            ]
            passes[0] = passes[0] + start[side] + (stages == 1) * tail[side]
            passes[-1] = passes[-1] + tail[side]
            sides.append(tuple(map(np.asarray, passes)))
        counts = tuple(run.count for run in runs)
        return makespan_s(
            Passes(forward_s=sides[0], backward_s=sides[1], counts=counts),
            schedule=table["schedule"],
            virtual_stages=table["virtual_stages"],
            micro_batches=table["micro_batches"],
            transfer_s=np.zeros(()),
        )

    @property
    def _at_once(self) -> bool:
        """Whether a forward and a backward may hide each other's exchange of rows."""
        return self.problem.pins.schedule == "dualpipe-v"

    @property
    def _recompute(self) -> Array:
        code = self.table["recompute"]
        some = self.problem.pins.recompute_layers is not None
        return np.full_like(code, _NONE) if some else code

    @cached_property
    def _ends(self) -> tuple[Array, Array]:
        nothing = np.full_like(self.table["recompute"], _NONE)
        first = self._passes("embedding", nothing)
        last = self._passes("final_norm", nothing) + self._passes("head", nothing)
        return first, last

    def _passes(self, name: str, recompute: Array) -> Array:
        """Forward and backward seconds of a block, [2, branches]."""
        block = self.problem.job.graph.block(name)
        keys, place = self.combos
        seconds = np.empty((2, len(self.variant)))
        for variant in np.unique(self.variant):
            prices = block_prices(
                block,
                self._degrees(keys, int(variant)),
                self.policy,
                self.problem.machine,
            )
            for code in np.unique(recompute[self.variant == variant]):
                rows = (self.variant == variant) & (recompute == code)
                retention = preset(RECOMPUTES[code], block)
                priced = atom(
                    block,
                    prices,
                    retention,
                    np.zeros(keys.shape[1]),
                    stops_early=self.problem.machine.software.stops_early,
                )
                backward = priced.recompute_s + priced.backward_s
                if self._at_once:
                    backward = backward - _exchanged(priced)
                seconds[0, rows] = priced.forward_s[place[rows]]
                seconds[1, rows] = backward[place[rows]]
        return seconds

    def _degrees(self, keys: Array, variant: int) -> Degrees:
        kind, split = divmod(variant, 2)
        return Degrees(
            **dict(zip(PLACE, keys, strict=True)),
            imbalance=self.problem.machine.imbalance,
            seq_len=self.problem.job.seq_len,
            sequence_parallel=bool(split),
            cp_kind=CP_KINDS[kind],
            flash_attention=self.problem.flash_attention,
        )
