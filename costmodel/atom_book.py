"""`AtomBook`: the atoms of a job on a machine, each priced when it is first asked for.

An atom hangs on its *site* – (tp, cp, micro-batch, ep, etp), the kind of context
parallelism and sequence parallelism – and on the retention preset: some thousands of
them for millions of candidates. A page has one block; blocks without experts are alike
whatever ep and etp, and those without attention whatever the kind of context
parallelism.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from costmodel.atoms import (
    Atom,
    Whole,
    atom,
    block_prices,
    shared_parameters,
    tied_parameters,
)
from costmodel.columns import Columns
from costmodel.layout import CP_KINDS
from costmodel.machine import Machine
from costmodel.offload import NOTHING, Offload, offloaded
from costmodel.retention import Retention, body_presets, preset
from costmodel.sharding import Degrees, entry_bytes
from costmodel.tied import tied_holder
from costmodel.work import OperatorPrice
from profiles.graph import Block
from profiles.job import Job
from profiles.operators import Kind
from profiles.precision import Precision, precision

Array = NDArray[Any]
PLACE: Final = ("tp", "cp", "micro_batch", "ep", "etp")
SITE: Final = (*PLACE, "cp_kind", "sequence_parallel")
ATOM: Final = tuple(item.name for item in fields(Atom))
OF_EXPERTS: Final = {Kind.GROUPED_MATMUL, Kind.DISPATCH, Kind.COMBINE}
# Treatments of their own, of parameters that two ends hold.
_SHARED: Final = "shared"
_TIED: Final = "tied"
_UNKNOWN: Final = -1


@dataclass(kw_only=True)
class AtomBook:
    """Prices of the blocks of *job* on one machine, in one precision."""

    job: Job
    on: Machine
    policy: Precision
    flash_attention: bool = True
    offload: Offload = NOTHING
    places: Array = field(default_factory=lambda: np.empty((0, len(SITE)), np.int64))
    _numbers: dict[tuple[int, ...], int] = field(default_factory=dict)
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

    def sites(self, columns: Mapping[str, Array]) -> Array:
        """Where the blocks of each row of *columns* are, as numbers of this book."""
        distinct, of_row = unique_rows([columns[name] for name in SITE])
        numbers, keys = self._numbers, list(map(tuple, distinct.tolist()))
        new = [key for key in keys if key not in numbers]
        if new:
            count = len(numbers)
            numbers.update(zip(new, range(count, count + len(new)), strict=True))
            self.places = np.concatenate([self.places, np.array(new)])
        return np.array([numbers[key] for key in keys], dtype=np.int64)[of_row]

    def atoms(
        self,
        name: str,
        sites: Array,
        treatments: Sequence[str | Retention],
        chosen: Array,
        wanted: Sequence[str] = ATOM,
    ) -> Array:
        """Each row's atom of the block *name* at its site, under the one of
        *treatments* that is *chosen*: an array of the *wanted* fields by rows."""
        picked = [ATOM.index(one) for one in wanted]
        found = np.empty((len(picked), len(sites)))
        kind, split = self.places[sites, 5], self.places[sites, 6]
        variant = kind * 2 + split if self._attends(name) else split
        for one in np.unique(variant):
            page = self._page(name, int(one))
            here = np.flatnonzero(variant == one)
            entry = page.entries(sites[here])
            for code in np.unique(chosen[here]):
                some = chosen[here] == code
                rows, table = here[some], page.table(treatments[code])
                for row, number in zip(found, picked, strict=True):
                    row[rows] = table[number].take(entry[some])
            page.forget()
        return found

    def shared(self, sites: Array) -> Array:
        """The parameter that embedding and head share, as atoms; nothing if they do
        not."""
        if not self.job.graph.tied:
            return np.zeros((len(ATOM), len(sites)))
        return self._tied(sites, _SHARED)

    def tied(self, sites: Array) -> Array:
        """The same for a stage that holds it as another one does, to sum with that."""
        return self._tied(sites, _TIED)

    def _tied(self, sites: Array, treatment: str) -> Array:
        holder, _ = tied_holder(self.job.graph)
        return self.atoms(holder, sites, [treatment], np.zeros_like(sites))

    @cached_property
    def body(self) -> frozenset[str]:
        """The kinds of numbered layers."""
        return frozenset(block.name for block, _ in self.job.graph.runs)

    def _attends(self, name: str) -> bool:
        operators = self.job.graph.block(name).operators
        return any(one.kind is Kind.ATTENTION for one in operators)

    def _page(self, name: str, variant: int) -> _Page:
        if (name, variant) not in self._pages:
            kind, split = divmod(variant, 2)
            self._pages[name, variant] = _Page(
                block=self.job.graph.block(name),
                book=self,
                cp_kind=CP_KINDS[kind],
                split=bool(split),
            )
        return self._pages[name, variant]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Sheet:
    """Places of a page that were asked for together, and their operators' prices."""

    size: int
    prices: dict[str, OperatorPrice]
    whole: Whole
    entry_bytes: Array


@dataclass(kw_only=True)
class _Page:
    """One block in one variant: an entry a place, in the order of asking.

    Prices of operators are many times the atoms made of them, so a page keeps them
    only while it is asked; who wants another treatment later has them made again.
    """

    block: Block
    book: AtomBook
    cp_kind: str
    split: bool
    _entry_of: Array = field(default_factory=lambda: np.empty(0, np.int64))
    _known: dict[tuple[int, ...], int] = field(default_factory=dict)
    _sheets: list[Array] = field(default_factory=list)  # places asked for together
    _operators: dict[int, _Sheet] = field(default_factory=dict)
    _tables: dict[str | Retention, tuple[int, Array]] = field(default_factory=dict)

    def entries(self, sites: Array) -> Array:
        """The entry of each of *sites*, priced if it is new."""
        missing = len(self.book.places) - len(self._entry_of)
        if missing:
            more = np.full(missing, _UNKNOWN)
            self._entry_of = np.concatenate([self._entry_of, more])
        found = self._entry_of[sites]
        new = np.unique(sites[found == _UNKNOWN])
        if len(new):
            self._entry_of[new] = self._entered(self.book.places[new, : len(PLACE)])
            found = self._entry_of[sites]
        return found

    def table(self, kept: str | Retention) -> Array:
        """All entries' atoms under *kept*, a preset or a retention."""
        if kept == "sqrt":  # at which a segment begins
            kept = "full"
        done, table = self._tables.get(kept, (0, np.empty((len(ATOM), 0))))
        if done < len(self._sheets):
            left = range(done, len(self._sheets))
            more = [self._atoms(self._priced(number), kept) for number in left]
            table = np.concatenate([table, *more], axis=1)
            self._tables[kept] = (len(self._sheets), table)
        return table

    def forget(self) -> None:
        """Drop the prices of operators."""
        self._operators.clear()

    def _entered(self, places: Array) -> list[int]:
        if not any(one.kind in OF_EXPERTS for one in self.block.operators):
            places[:, 3:] = 1
        known, keys = self._known, list(map(tuple, places.tolist()))
        new = [key for key in dict.fromkeys(keys) if key not in known]
        if new:
            known.update(
                zip(new, range(len(known), len(known) + len(new)), strict=True)
            )
            self._sheets.append(np.array(new))
        return [known[key] for key in keys]

    def _priced(self, number: int) -> _Sheet:
        if number not in self._operators:
            self._operators[number] = self._sheet(self._sheets[number])
        return self._operators[number]

    def _sheet(self, places: Array) -> _Sheet:
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
        return _Sheet(
            size=len(places),
            prices=prices,
            whole=Whole.of(prices),
            entry_bytes=entry_bytes(self.block, degrees, book.policy),
        )

    def _atoms(self, sheet: _Sheet, kept: str | Retention) -> Array:
        found = self._assembled(sheet, kept)
        table = np.empty((len(ATOM), sheet.size))
        for row, name in zip(table, ATOM, strict=True):
            row[:] = getattr(found, name)
        return table

    def _assembled(self, sheet: _Sheet, kept: str | Retention) -> Atom:
        if kept in (_SHARED, _TIED):
            _, holder = tied_holder(self.book.job.graph)
            made = shared_parameters if kept == _SHARED else tied_parameters
            return made(sheet.prices[holder])
        retention = self._retention(kept)
        if self.block.name in self.book.body:
            retention = offloaded(retention, self.block, self.book.offload)
        software = self.book.on.software
        return atom(
            self.block,
            sheet.prices,
            retention,
            sheet.entry_bytes,
            whole=sheet.whole,
            stops_early=software.stops_early,
            floor=software.launch_floor,
        )

    def _retention(self, kept: str | Retention) -> Retention:
        """Of lists of operators those that the block has: other kinds have theirs."""
        if not isinstance(kept, str):
            return kept
        if self.block.name in self.book.body:
            return body_presets(kept, self.book.job.graph)[self.block.name]
        return preset(kept, self.block)


def as_atom(table: Array) -> Atom:
    """The rows of *table* as fields."""
    return Atom(**dict(zip(ATOM, table, strict=True)))


def unique_rows(keys: Sequence[Array]) -> tuple[Array, Array]:
    """Distinct rows of the columns *keys*, and the index of each row among them."""
    spans = [int(key.max(initial=0)) + 1 for key in keys]
    packed = np.ravel_multi_index(tuple(keys), spans)
    distinct, index = np.unique(packed, return_inverse=True)
    return np.stack(np.unravel_index(distinct, spans), axis=1), index
