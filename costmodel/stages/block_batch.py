"""Atoms of all that some layouts want, in one table; what is known is not made again.

blocks at all their places → operators' prices → one atom a way to keep its tensors

`Known`: what pricing one layout after another need not make twice.

`AtomBook`: the atoms of a job on a machine, each priced when it is first asked for.

An atom hangs on its *site* – (tp, cp, micro-batch, ep, etp), the kind of context
parallelism and sequence parallelism – and on the retention preset: some thousands of
them for millions of candidates. A page has one block; blocks without experts are alike
whatever ep and etp, and those without attention whatever the kind of context
parallelism.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any, Final, TypeVar

import numpy as np
from numpy.typing import ArrayLike

from costmodel.layout import (
    CP_KINDS,
    NOTHING,
    Columns,
    ModuleSharding,
    Offload,
    Retention,
    body_presets,
    offloaded,
    preset,
    require_priced,
)
from costmodel.machine import Machine
from costmodel.operators import (
    Degrees,
    OperatorPrice,
    Packer,
    entry_bytes,
    tensor_bytes,
)
from costmodel.stages.block_cost import (
    ATOM,
    Atom,
    Whole,
    atom,
    block_prices,
    parameter_sums,
)
from costmodel.stages.data_parallelism import Place
from profiles.arrays import Array
from profiles.hardware import Precision, precision
from profiles.models import EVERY_OPERATOR, MIXERS, Block, Job, Kind, Tensor

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Known:
    """Prices of one job on one machine, by what they depend on.

    The delta simulation of FlexFlow (Jia et al., MLSys 2019, section 5.3): where one
    dimension of a layout changes, what does not depend on it is known already.

    >>> known = Known()
    >>> known.once("a", lambda: 1), known.once("a", lambda: 2), len(known)
    (1, 1, 1)
    """

    _made: dict[Hashable, Any] = field(default_factory=dict)

    def __len__(self) -> int:
        """How many prices were made."""
        return len(self._made)

    def once(self, key: Hashable, make: Callable[[], T]) -> T:
        """What *make* gives, made when it is first asked for."""
        if key not in self._made:
            self._made[key] = make()
        found: T = self._made[key]
        return found


@dataclass(frozen=True, slots=True)
class Tied:
    """Instead of a retention: of parameters that several layers hold, those of
    *operator* or of every one, what a stage sums with others. A stage that has them
    `twice` counts them -1 times for each layer but one."""

    operator: str
    twice: bool


@dataclass(frozen=True, slots=True)
class Carried:
    """Instead of a retention: of a *tensor* that a block reads of a layer further
    before, what a stage holds that it comes to."""

    tensor: Tensor


Treatment = Retention | Tied | Carried


@dataclass(frozen=True, slots=True, kw_only=True)
class PricedBlock:
    """The operators of a block, at one place or several, with the bytes that it is
    entered with: what its atoms under all treatments are made of."""

    block: Block
    prices: dict[str, OperatorPrice]
    whole: Whole
    entry_bytes: Array
    packer: Packer
    degrees: Degrees
    precision: Precision

    @classmethod
    def of(
        cls, block: Block, degrees: Degrees, precision: Precision, machine: Machine
    ) -> PricedBlock:
        """*block* where *degrees* say."""
        prices = block_prices(block, degrees, precision, machine)
        return cls(
            block=block,
            prices=prices,
            whole=Whole.of(prices),
            entry_bytes=entry_bytes(block, degrees, precision),
            packer=Packer.of(machine, precision),
            degrees=degrees,
            precision=precision,
        )

    def table(self, treatment: Treatment, places: int) -> Array:
        """Its atoms at so many *places*."""
        found = self._atom(treatment).table.reshape(len(ATOM), -1)
        return np.broadcast_to(found, (len(ATOM), places))

    def _atom(self, treatment: Treatment) -> Atom:
        if isinstance(treatment, Tied):
            return self._tied(treatment)
        if isinstance(treatment, Carried):
            where = self.block, self.degrees, self.precision
            held = tensor_bytes(treatment.tensor, *where)
            return Atom.of(np.shape(held), saved_bytes=held)
        require_priced(treatment, self.block)
        framework = self.packer.machine.framework
        return atom(
            self.block,
            self.prices,
            treatment,
            self.entry_bytes,
            whole=self.whole,
            stops_early=framework.stops_early,
            floor=framework.host.floor,
            packer=self.packer,
        )

    def _tied(self, treatment: Tied) -> Atom:
        """The parameters of one operator, or all that layers which share them have."""
        if treatment.operator == EVERY_OPERATOR:
            held = parameter_sums(self.prices)
        else:
            names = ("parameters", "frozen_parameters")
            one = self.prices[treatment.operator]
            held = {name: getattr(one, name) for name in names}
        shape = np.shape(held["parameters"])
        if not treatment.twice:
            held = {"tied_parameters": held["parameters"]}
        elif treatment.operator == EVERY_OPERATOR:
            held["reused_parameters"] = -held["parameters"]
        return Atom.of(shape, **held)


PLACE: Final = ("tp", "cp", "micro_batch", "ep", "etp")
SITE: Final = (*PLACE, "cp_kind", "sequence_parallel")
OF_EXPERTS: Final = {Kind.GROUPED_MATMUL, Kind.DISPATCH, Kind.COMBINE}
_UNKNOWN: Final = -1


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Site:
    """A block, and what all its places have in common."""

    block: Block
    seq_len: int
    sharding: str
    cp_kind: str
    flash_attention: bool
    imbalance: float
    modules: tuple[ModuleSharding, ...] = ()

    @property
    def family(self) -> object:
        """Sites of one family differ in nothing but how large dimensions are."""
        block = self.block
        shape = (id(block.alike), block.entry, block.window, block.reads)
        rest = (self.seq_len, self.sharding, self.cp_kind, self.flash_attention)
        return (*shape, block.capacity, *rest, self.modules)

    def degrees(self, places: ArrayLike) -> Degrees:
        """Of a place as numbers, of several as arrays."""
        columns: dict[str, Any] = dict(zip(PLACE, np.asarray(places).T, strict=True))
        return Degrees(
            **{name: np.asarray(column) for name, column in columns.items()},
            seq_len=self.seq_len,
            sequence_parallel=self.sharding == "megatron-sp",
            cp_kind=self.cp_kind,
            flash_attention=self.flash_attention,
            imbalance=self.imbalance,
            modules=self.modules,
        )


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
        treatments: Sequence[str | Treatment],
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

    def tied(self, holder: tuple[str, str], sites: Array, *, twice: bool) -> Atom:
        """Atoms of `Tied`: the parameters of the *holder*, a layer and its operator."""
        layer, operator = holder
        name = self.job.graph.layer_blocks[layer].name
        wanted = [Tied(operator, twice)]
        return Atom(self.atoms(name, sites, wanted, np.zeros_like(sites)))

    @cached_property
    def body(self) -> frozenset[str]:
        """The kinds of numbered layers."""
        return frozenset(block.name for block, _ in self.job.graph.runs)

    def _attends(self, name: str) -> bool:
        operators = self.job.graph.block(name).operators
        return any(one.kind in MIXERS for one in operators)

    def _page(self, name: str, variant: int) -> _Page:
        if (name, variant) not in self._pages:
            kind, split = divmod(variant, 2)
            site = Site(
                block=self.job.graph.block(name),
                seq_len=self.job.seq_len,
                sharding="megatron-sp" if split else "megatron",
                cp_kind=CP_KINDS[kind],
                flash_attention=self.flash_attention,
                imbalance=self.on.imbalance,
            )
            self._pages[name, variant] = _Page(site=site, book=self)
        return self._pages[name, variant]


@dataclass(kw_only=True)
class _Page:
    """One block in one variant: an entry a place, in the order of asking.

    Prices of operators are many times the atoms made of them, so a page keeps them
    only while it is asked; who wants another treatment later has them made again.
    """

    site: Site
    book: AtomBook
    _entry_of: Array = field(default_factory=lambda: np.empty(0, np.int64))
    _known: dict[tuple[int, ...], int] = field(default_factory=dict)
    _sheets: list[Array] = field(default_factory=list)  # places asked for together
    _operators: dict[int, PricedBlock] = field(default_factory=dict)
    _tables: dict[str | Treatment, tuple[int, Array]] = field(default_factory=dict)

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

    def table(self, kept: str | Treatment) -> Array:
        """All entries' atoms under *kept*, a preset or a treatment."""
        if kept == "sqrt":  # at which a segment begins
            kept = "full"
        done, table = self._tables.get(kept, (0, np.empty((len(ATOM), 0))))
        if done < len(self._sheets):
            treatment = self._treatment(kept)
            more = [
                self._priced(number).table(treatment, len(self._sheets[number]))
                for number in range(done, len(self._sheets))
            ]
            table = np.concatenate([table, *more], axis=1)
            self._tables[kept] = (len(self._sheets), table)
        return table

    def forget(self) -> None:
        """Drop the prices of operators."""
        self._operators.clear()

    def _entered(self, places: Array) -> list[int]:
        if not any(one.kind in OF_EXPERTS for one in self.site.block.operators):
            places[:, 3:] = 1
        known, keys = self._known, list(map(tuple, places.tolist()))
        new = [key for key in dict.fromkeys(keys) if key not in known]
        if new:
            known.update({key: len(known) + at for at, key in enumerate(new)})
            self._sheets.append(np.array(new))
        return [known[key] for key in keys]

    def _priced(self, number: int) -> PricedBlock:
        if number not in self._operators:
            book = self.book
            self._operators[number] = PricedBlock.of(
                self.site.block,
                self.site.degrees(self._sheets[number]),
                book.policy,
                book.on,
            )
        return self._operators[number]

    def _treatment(self, kept: str | Treatment) -> Treatment:
        """Of lists of operators those that the block has: other kinds have theirs."""
        name, book = self.site.block.name, self.book
        if isinstance(kept, str) and name in book.body:
            kept = body_presets(kept, book.job.graph)[name]
        elif isinstance(kept, str):
            kept = preset(kept, self.site.block)
        if not isinstance(kept, Retention) or name not in book.body:
            return kept
        return offloaded(kept, self.site.block, book.offload)


def unique_rows(keys: Sequence[Array]) -> tuple[Array, Array]:
    """Distinct rows of the columns *keys*, and the index of each row among them."""
    spans = [int(key.max(initial=0)) + 1 for key in keys]
    packed = np.ravel_multi_index(tuple(keys), spans)
    distinct, index = np.unique(packed, return_inverse=True)
    return np.stack(np.unravel_index(distinct, spans), axis=1), index


Wanted = tuple[Site, Place, Treatment]


def atom_table(
    wanted: Iterable[Wanted], precision: Precision, machine: Machine, known: Known
) -> tuple[Atom, dict[Wanted, int]]:
    """Atoms of all that is wanted in one table, and the row of each; row 0 is none."""
    places: dict[object, dict[tuple[Site, Place], None]] = defaultdict(dict)
    treatments: dict[object, dict[Treatment, None]] = defaultdict(dict)
    for site, place, treatment in wanted:
        places[site.family][site, place] = None
        treatments[site.family][treatment] = None
    tables = [np.zeros((len(ATOM), 1))]
    rows: dict[Wanted, int] = {}
    for family, pairs in places.items():
        sites = tuple((family, id(site.block), site.imbalance) for site, _ in pairs)
        key = (sites, tuple(place for _, place in pairs), precision)
        priced = known.once(key, partial(_priced, list(pairs), precision, machine))
        for treatment in treatments[family]:
            table = partial(priced.table, treatment, len(pairs))
            tables.append(known.once((*key, treatment), table))
            for site, place in pairs:
                rows[site, place, treatment] = len(rows) + 1
    return Atom(np.concatenate(tables, axis=1)), rows


def _priced(
    pairs: Sequence[tuple[Site, Place]], precision: Precision, machine: Machine
) -> PricedBlock:
    block = _stacked([site.block for site, _ in pairs])
    places = [place for _, place in pairs]
    degrees = pairs[0][0].degrees(places if len(places) > 1 else places[0])
    return PricedBlock.of(block, degrees, precision, machine)


def _stacked(blocks: Sequence[Block]) -> Block:
    """Blocks of one family as one whose lengths are arrays."""
    first = blocks[0]
    if all(block is first for block in blocks):
        return first
    sizes: dict[str, Any] = {
        name: np.array([getattr(block, name) for block in blocks])
        for name in ("heads", "kv_heads", "head_dim")
    }
    extents: dict[str, Any] = {
        name: np.array([block.extents[name] for block in blocks])
        for name in first.extents
        if all(name in block.extents for block in blocks)
    }
    return replace(first, extents=extents, **sizes)
