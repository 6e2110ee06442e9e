"""Columns of candidates priced at once, from a few hundred atoms.

Each row gathers the atoms of its (tp, cp, micro-batch, sequence parallel, retention)
and is priced by the very functions that price a finished layout: what comes out is
the closed form of `closed_form`, a lower bound of the simulated step.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from costmodel.atoms import Atom, atom, block_prices, shared_parameters
from costmodel.closed_form import Kinds, Passes, makespan_s, stage_kinds
from costmodel.columns import RECOMPUTES, SCHEDULES, Columns
from costmodel.crossing import crossing_s, partly_crosses
from costmodel.data_parallel import DataParallel, buckets_of
from costmodel.gradient_reduction import reduce_tail_s
from costmodel.in_flight import peak_in_flight
from costmodel.layout import CP_KINDS
from costmodel.machine import Machine
from costmodel.memory import memory
from costmodel.placement import always_crosses
from costmodel.retention import preset
from costmodel.sharding import Degrees, tensor_bytes
from costmodel.stage import StagePrice, stage_price
from costmodel.tied import tied_holder, tied_sync_s
from costmodel.transfers import boundary_s
from profiles.graph import Block
from profiles.job import Job
from profiles.precision import Precision, precision

Array = NDArray[Any]


@dataclass(frozen=True, kw_only=True)
class ColumnPrices:
    """One number a row: seconds of a step and bytes of the fullest rank, both lower
    bounds of what the simulation of that row gives."""

    step_time_s: Array
    peak_memory_bytes: Array


def price(columns: Columns, job: Job, on: Machine) -> ColumnPrices:
    """Price every row of *columns* for *job* on a machine."""
    return _Grid(columns=columns, job=job, on=on).prices()


@dataclass(kw_only=True)
class _Grid:
    """One pricing of columns: what its steps share."""

    columns: Columns
    job: Job
    on: Machine

    @cached_property
    def policy(self) -> Precision:
        return precision(self.columns.precision, gradient=self.columns.gradient_format)

    @cached_property
    def parallel(self) -> DataParallel:
        names = ("tp", "cp", "dp", "zero", "zero_group")
        return DataParallel(**{name: getattr(self.columns, name) for name in names})

    @cached_property
    def micro_batches(self) -> Array:
        return self.job.global_batch // (self.columns.micro_batch * self.columns.dp)

    @cached_property
    def stages(self) -> Array:
        """Virtual stages of each row."""
        return np.asarray(self.columns.pp * self.columns.virtual_stages)

    @cached_property
    def kinds(self) -> Kinds:
        return stage_kinds(self.job.graph.body, self.stages)

    @cached_property
    def counts(self) -> tuple[Array, Array, Array, Array]:
        kinds = self.kinds
        ones = np.ones_like(self.stages)
        last = (self.stages > 1).astype(int)
        return ones, kinds.low_count, kinds.high_count, last

    @cached_property
    def priced(self) -> tuple[StagePrice, StagePrice, StagePrice, StagePrice]:
        """A first, a low, a high and a last virtual stage of each row."""
        kinds = self.kinds
        whole = (self.stages == 1).astype(int)
        layer, nothing = self._layer, np.zeros_like(whole)
        ends = (self._end("embedding"), self._end("final_norm"), self._end("head"))
        shared = self._shared

        def stage(layers: Array, first: Array, last: Array) -> StagePrice:
            counts = (first, layers, last, last, -first * last)
            atoms = (ends[0], layer, *ends[1:], shared)
            parts = list(zip(counts, atoms, strict=True))
            moments = self.job.moments
            return stage_price(parts, self.parallel, self.policy, self.on, moments)

        return (
            stage(kinds.first, nothing + 1, whole),
            stage(kinds.low, nothing, nothing),
            stage(kinds.high, nothing, nothing),
            stage(kinds.last, nothing, nothing + 1),
        )

    @cached_property
    def middle(self) -> StagePrice:
        """A middle stage where all are alike: of the low kind, or of the high one."""
        _, low, high, _ = self.priced
        is_low = self.counts[1] > 0
        values = {
            item.name: np.where(
                is_low, getattr(low, item.name), getattr(high, item.name)
            )
            for item in fields(StagePrice)
        }
        return StagePrice(**values)

    def prices(self) -> ColumnPrices:
        return ColumnPrices(
            step_time_s=self._step_time_s(), peak_memory_bytes=self._peak_bytes()
        )

    # --- seconds -------------------------------------------------------------------

    def _step_time_s(self) -> Array:
        first, _, _, last = self.priced
        columns = self.columns
        passes = Passes(
            forward_s=tuple(item.forward_s for item in self.priced),
            backward_s=tuple(item.backward_s for item in self.priced),
            counts=self.counts,
        )
        makespan = makespan_s(
            passes,
            schedule=columns.schedule,
            virtual_stages=columns.virtual_stages,
            micro_batches=self.micro_batches,
            transfer_s=self._transfer_s(always_crosses(self._stride, self.on.island)),
        )
        makespan = np.maximum(makespan, self._crossing_s())
        # The first rank's last backward is the pipeline's last action.
        overlapped = "grad" in self.on.software.overlap
        behind = first.reduce_s if overlapped else self._on_rank(first, "reduce_s")
        tail = reduce_tail_s(
            behind,
            first.backward_s,
            buckets=buckets_of(first.parameters, self.policy, self.on),
            overlap=overlapped,
        )
        ends = [
            self._on_rank(end, "step_s") + self._on_rank(end, "gather_s")
            for end in (first, last)
        ]
        tied = tied_sync_s(
            self.job,
            self.on,
            self.policy,
            tp=columns.tp,
            pp=columns.pp,
            stride=columns.tp * columns.cp * columns.dp,
        )
        return np.asarray(makespan + tail + np.maximum(*ends) + tied)

    def _on_rank(self, end: StagePrice, name: str) -> Array:
        """A quantity of a rank: its end chunk and the middle chunks beside it."""
        chunks = self.columns.virtual_stages - 1
        return np.asarray(getattr(end, name) + chunks * getattr(self.middle, name))

    @property
    def _stride(self) -> Array:
        """Ranks of a stage."""
        return np.asarray(self.columns.tp * self.columns.cp * self.columns.dp)

    def _crossing_s(self) -> Array:
        """What boundaries between domains cost where others lie inside one."""
        columns, domain = self.columns, self.on.island.domain
        if not np.any(partly_crosses(self._stride, columns.pp, domain)):
            return np.zeros(len(columns))
        both = [item.forward_s + item.backward_s for item in self.priced]
        there = [
            np.where(count > 0, one, np.inf)
            for count, one in zip(self.counts, both, strict=True)
        ]
        return crossing_s(
            columns.schedule,
            stride=self._stride,
            pp=columns.pp,
            domain=domain,
            virtual_stages=columns.virtual_stages,
            micro_batches=self.micro_batches,
            least_pass_s=np.minimum.reduce(there),
            far_s=self._transfer_s(np.asarray(True)),
        )

    def _transfer_s(self, far: Array) -> Array:
        columns = self.columns
        seconds = boundary_s(
            self.job,
            self.on,
            self.policy,
            tp=columns.tp,
            cp=columns.cp,
            micro_batch=columns.micro_batch,
            sequence_parallel=columns.sequence_parallel > 0,
            far=far,
        )
        return np.where(columns.pp > 1, seconds, 0.0)

    # --- bytes ---------------------------------------------------------------------

    def _peak_bytes(self) -> Array:
        """The fullest of the ranks that can be: the first, the first of the low and
        of the high middle ones, and the last."""
        first, low, high, last = self.priced
        counts, pp = self.counts, self.columns.pp
        several = self.columns.virtual_stages > 1
        zero = np.zeros_like(pp)
        ranks = (
            (first, zero, counts[0] > 0),
            (low, zero + 1, (counts[1] > 0) & ~several),
            (high, 1 + counts[1], (counts[2] > 0) & ~several),
            (self.middle, zero + 1, several & (pp > 2)),
            (last, pp - 1, counts[3] > 0),
        )
        most: Array = np.zeros(len(self.columns))
        for stage, rank, present in ranks:
            here = self._rank_bytes(stage, rank, is_last=stage is last)
            most = np.maximum(most, np.where(present, here, 0))
        return most

    def _rank_bytes(self, end: StagePrice, rank: Array, *, is_last: bool) -> Array:
        """A rank that holds the chunk *end* and, if interleaved, middle chunks."""
        columns, m, middle = self.columns, self.micro_batches, self.middle
        alive = np.zeros_like(columns.pp)
        for code, name in enumerate(SCHEDULES):
            count = peak_in_flight(name, rank, columns.pp, columns.virtual_stages, m)
            alive = np.where(columns.schedule == code, count, alive)
        own = _own_chunk(alive, columns, is_last=is_last)
        activations = own * end.saved_bytes + (alive - own) * middle.saved_bytes
        working = np.maximum(end.forward_working_bytes, end.backward_working_bytes)
        pieces = memory(
            parameters=self._on_rank(end, "parameters"),
            gathered_bytes=end.gathered_bytes,
            activation_bytes=activations,
            transient_bytes=working,
            parallel=self.parallel,
            precision=self.policy,
            moments=self.job.moments,
            device=self.on.device,
            ranks=columns.tp * columns.pp * columns.dp * columns.cp,
        )
        return pieces.total

    # --- atoms ---------------------------------------------------------------------

    @cached_property
    def _combos(self) -> tuple[Array, Array]:
        """Distinct (tp, cp, micro-batch), and each row's index among them."""
        columns = self.columns
        keys = np.stack([columns.tp, columns.cp, columns.micro_batch], axis=1)
        return _unique_rows(keys)

    @cached_property
    def _variant(self) -> Array:
        """Each row's (cp kind, sequence parallel) as one number."""
        return np.asarray(
            self.columns.cp_kind * 2 + (self.columns.sequence_parallel > 0)
        )

    def _degrees(self, variant: int) -> Degrees:
        keys, _ = self._combos
        kind, split = divmod(variant, 2)
        return Degrees(
            tp=keys[:, 0],
            cp=keys[:, 1],
            micro_batch=keys[:, 2],
            seq_len=self.job.seq_len,
            sequence_parallel=bool(split),
            cp_kind=CP_KINDS[kind],
            flash_attention=self.columns.flash_attention,
        )

    @cached_property
    def _layer(self) -> Atom:
        return self._gather("layer", list(RECOMPUTES), self.columns.recompute)

    def _end(self, name: str) -> Atom:
        return self._gather(name, ["none"], np.zeros_like(self.columns.recompute))

    @cached_property
    def _shared(self) -> Atom:
        """The parameter that embedding and head share; nothing if they do not."""
        keys, combo = self._combos
        holder, name = tied_holder(self.job.graph)
        block = self.job.graph.block(holder)
        prices = block_prices(block, self._degrees(0), self.policy, self.on)
        tied = 1 if self.job.graph.tied else 0
        count = np.broadcast_to(prices[name].parameters * tied, len(keys))
        atom = shared_parameters(replace(prices[name], parameters=count))
        return atom.take(combo)

    def _gather(self, name: str, presets: list[str], chosen: Array) -> Atom:
        """Each row's atom of the block *name*."""
        block = self.job.graph.block(name)
        keys, combo = self._combos
        atoms: list[Atom] = []
        place = np.full((2 * len(CP_KINDS), len(presets)), -1)
        for variant in np.unique(self._variant):
            degrees = self._degrees(int(variant))
            prices = block_prices(block, degrees, self.policy, self.on)
            entry = _entry_bytes(block, degrees, self.policy)
            for code in np.unique(chosen[self._variant == variant]):
                place[variant, code] = len(atoms)
                retention = preset(presets[code], block)
                atoms.append(atom(block, prices, retention, entry))
        row = place[self._variant, chosen] * len(keys) + combo
        table = {
            item.name: np.concatenate(
                [np.broadcast_to(getattr(one, item.name), len(keys)) for one in atoms]
            )
            for item in fields(Atom)
        }
        return Atom(**table).take(row)


def _own_chunk(alive: Array, columns: Columns, *, is_last: bool) -> Array:
    """Of the pairs alive on a rank, those of its first (or last) chunk."""
    pp, v = columns.pp, columns.virtual_stages
    rounds, rest = np.divmod(alive, pp * v)
    chunk = v - 1 if is_last else 0
    own = rounds * pp + np.clip(rest - chunk * pp, 0, pp)
    return np.where(v > 1, own, alive)


def _entry_bytes(block: Block, degrees: Degrees, policy: Precision) -> Array:
    if block.entry is None:
        return np.zeros(())
    return tensor_bytes(block.entry, block, degrees, policy)


def _unique_rows(keys: Array) -> tuple[Array, Array]:
    """Distinct rows and the index of each, by packing a row into one number."""
    spans = keys.max(axis=0) + 1
    packed = (keys[:, 0] * spans[1] + keys[:, 1]) * spans[2] + keys[:, 2]
    distinct, index = np.unique(packed, return_inverse=True)
    left, third = np.divmod(distinct, spans[2])
    first, second = np.divmod(left, spans[1])
    return np.stack([first, second, third], axis=1), index
