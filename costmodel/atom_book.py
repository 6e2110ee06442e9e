"""`AtomBook`: the atoms of a job on a machine, each priced when it is first asked for.

An atom hangs on its site – (tp, cp, micro-batch, ep, etp), sequence parallelism and the
kind of context parallelism – and on the retention preset: some thousands of them for
millions of candidates. Blocks without experts are alike whatever ep and etp, and those
without attention whatever the kind of context parallelism.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from costmodel.atoms import Atom, atom, block_prices, shared_parameters
from costmodel.columns import Columns
from costmodel.layout import CP_KINDS
from costmodel.machine import Machine
from costmodel.offload import NOTHING, Offload, offloaded
from costmodel.retention import Retention, preset
from costmodel.sharding import Degrees, entry_bytes
from costmodel.tied import tied_holder
from costmodel.work import OperatorPrice
from profiles.graph import Block
from profiles.job import Job
from profiles.operators import Kind
from profiles.precision import Precision, precision

Array = NDArray[Any]
PLACE: Final = ("tp", "cp", "micro_batch", "ep", "etp")
OF_EXPERTS: Final = {Kind.GROUPED_MATMUL, Kind.DISPATCH, Kind.COMBINE}
_ATOM: Final = tuple(item.name for item in fields(Atom))
_SHARED: Final = "shared"  # a treatment of its own: parameters that two ends hold


@dataclass(frozen=True, slots=True, kw_only=True)
class Sites:
    """Distinct sites of rows, and which of them each row has."""

    places: Array  # [sites, PLACE]
    variants: Array  # [sites], (kind of cp, sequence parallel) as one number
    of_row: Array

    @classmethod
    def of(cls, columns: Mapping[str, Array]) -> Sites:
        """The sites of *columns*, arrays of integers by name."""
        variant = columns["cp_kind"] * 2 + (columns["sequence_parallel"] > 0)
        keys = np.stack([*(columns[name] for name in PLACE), variant], axis=1)
        distinct, of_row = unique_rows(keys)
        return cls(places=distinct[:, :-1], variants=distinct[:, -1], of_row=of_row)


@dataclass(kw_only=True)
class AtomBook:
    """Prices of the blocks of *job* on one machine, in one precision."""

    job: Job
    on: Machine
    policy: Precision
    flash_attention: bool = True
    offload: Offload = NOTHING
    _pages: dict[tuple[str, int], _Page] = field(default_factory=dict)

    @classmethod
    def for_columns(cls, columns: Columns, job: Job, on: Machine) -> AtomBook:
        """A book for rows of what *columns* have in common."""
        return cls(
            job=job,
            on=on,
            policy=precision(columns.precision, gradient=columns.gradient_format),
            flash_attention=columns.flash_attention,
            offload=columns.offload,
        )

    def atoms(
        self,
        name: str,
        sites: Sites,
        retentions: Sequence[str | Retention],
        chosen: Array,
        wanted: Sequence[str] = _ATOM,
    ) -> Array:
        """Each row's atom of the block *name*, under the one of *retentions* that is
        *chosen*: an array of the *wanted* fields by rows."""
        picked = [_ATOM.index(one) for one in wanted]
        found = np.empty((len(picked), len(chosen)))
        variant = sites.variants[sites.of_row]
        for one in np.unique(sites.variants):
            here = np.flatnonzero(variant == one)
            page = self._page(name, int(one))
            own = np.flatnonzero(sites.variants == one)
            entry = np.empty(len(sites.variants), dtype=np.int64)
            entry[own] = page.entries(sites.places[own])
            for code in np.unique(chosen[here]):
                rows = here[chosen[here] == code]
                table = page.table(retentions[code])[picked]
                found[:, rows] = table[:, entry[sites.of_row[rows]]]
        return found

    def shared(self, sites: Sites) -> Atom:
        """The parameter that embedding and head share; nothing if they do not."""
        holder, _ = tied_holder(self.job.graph)
        nothing = np.zeros(len(sites.of_row), dtype=np.int64)
        if not self.job.graph.tied:
            return as_atom(np.zeros((len(_ATOM), len(nothing))))
        return as_atom(self.atoms(holder, sites, [_SHARED], nothing))

    def _page(self, name: str, variant: int) -> _Page:
        block = self.job.graph.block(name)
        kind, split = divmod(variant, 2)
        if not any(one.kind is Kind.ATTENTION for one in block.operators):
            kind = 0
        key = (name, kind * 2 + split)
        if key not in self._pages:
            self._pages[key] = _Page(
                block=block, book=self, cp_kind=CP_KINDS[kind], split=bool(split)
            )
        return self._pages[key]

    @cached_property
    def body(self) -> frozenset[str]:
        """The kinds of numbered layers."""
        return frozenset(block.name for block, _ in self.job.graph.runs)


@dataclass(kw_only=True)
class _Page:
    """One block in one variant: its places in the order in which they were asked for,
    sheet by sheet."""

    block: Block
    book: AtomBook
    cp_kind: str
    split: bool
    _known: dict[tuple[int, ...], int] = field(default_factory=dict)
    _sheets: list[tuple[int, dict[str, OperatorPrice], Array]] = field(
        default_factory=list
    )
    _tables: dict[str | Retention, tuple[int, Array]] = field(default_factory=dict)

    @cached_property
    def has_experts(self) -> bool:
        return any(one.kind in OF_EXPERTS for one in self.block.operators)

    def entries(self, places: Array) -> Array:
        """The entry of each of *places*, priced if it is new."""
        if not self.has_experts:
            places = places.copy()
            places[:, 3:] = 1
        known, keys = self._known, list(map(tuple, places.tolist()))
        new = [key for key in dict.fromkeys(keys) if key not in known]
        if new:
            known.update(zip(new, range(len(known), len(known) + len(new)), strict=True))
            self._sheets.append(self._priced(np.array(new)))
        return np.array([known[key] for key in keys], dtype=np.int64)

    def table(self, kept: str | Retention) -> Array:
        """All entries' atoms under the preset or retention *kept*, [fields, entries]."""
        done, table = self._tables.get(kept, (0, np.empty((len(_ATOM), 0))))
        if done < len(self._sheets):
            more = [self._sheet(number, kept) for number in range(done, len(self._sheets))]
            table = np.concatenate([table, *more], axis=1)
            self._tables[kept] = (len(self._sheets), table)
        return table

    def _priced(self, places: Array) -> tuple[int, dict[str, OperatorPrice], Array]:
        book = self.book
        degrees = Degrees(
            **dict(zip(PLACE, places.T, strict=True)),
            imbalance=book.on.imbalance,
            seq_len=book.job.seq_len,
            sequence_parallel=self.split,
            cp_kind=self.cp_kind,
            flash_attention=book.flash_attention,
        )
        prices = block_prices(self.block, degrees, book.policy, book.on)
        return len(places), prices, entry_bytes(self.block, degrees, book.policy)

    def _sheet(self, number: int, kept: str | Retention) -> Array:
        size, prices, entry = self._sheets[number]
        found = self._assembled(prices, entry, kept)
        table = np.empty((len(_ATOM), size))
        for row, name in zip(table, _ATOM, strict=True):
            row[:] = getattr(found, name)
        return table

    def _assembled(
        self, prices: dict[str, OperatorPrice], entry: Array, kept: str | Retention
    ) -> Atom:
        if kept == _SHARED:
            _, holder = tied_holder(self.book.job.graph)
            return shared_parameters(prices[holder])
        retention = preset(kept, self.block) if isinstance(kept, str) else kept
        if self.block.name in self.book.body:
            retention = offloaded(retention, self.block, self.book.offload)
        software = self.book.on.software
        return atom(
            self.block,
            prices,
            retention,
            entry,
            stops_early=software.stops_early,
            sharpness=software.sharpness,
        )


def as_atom(table: Array) -> Atom:
    """The rows of *table* as fields."""
    return Atom(**dict(zip(_ATOM, table, strict=True)))


def unique_rows(keys: Array) -> tuple[Array, Array]:
    """Distinct rows and the index of each, by packing a row into one number."""
    spans = [int(span) for span in keys.max(axis=0, initial=0) + 1]
    packed = np.ravel_multi_index(tuple(keys.T), spans)
    distinct, index = np.unique(packed, return_inverse=True)
    return np.stack(np.unravel_index(distinct, spans), axis=1), index
