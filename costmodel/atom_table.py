"""Atoms of all that some layouts want, in one table; what is known is not made again.

blocks at all their places → operators' prices → one atom a way to keep its tensors
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import Any

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
from costmodel.compression import Packer
from costmodel.known import Known
from costmodel.machine import Machine
from costmodel.mesh_parallel import Place
from costmodel.module_sharding import ModuleSharding
from costmodel.retention import Retention, require_priced
from costmodel.sharding import Degrees, entry_bytes
from costmodel.work import OperatorPrice
from profiles.graph import Block
from profiles.precision import Precision

Array = NDArray[Any]


@dataclass(frozen=True, slots=True)
class Tied:
    """Instead of a treatment: what two ends do of a parameter that both of them hold,
    that of *operator*. A stage that is both has it `twice`."""

    operator: str
    twice: bool


Treatment = Retention | Tied


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
        shape = (id(block.alike), block.entry, block.window, block.causal)
        rest = (self.seq_len, self.sharding, self.cp_kind, self.flash_attention)
        return (*shape, block.capacity, *rest, self.modules)

    def degrees(self, places: Sequence[Place]) -> Degrees:
        """The places as arrays; one alone as numbers."""
        columns = np.array(places[0] if len(places) == 1 else places).T
        tp, cp, micro_batch, ep, etp = columns
        return Degrees(
            tp=np.asarray(tp),
            cp=np.asarray(cp),
            micro_batch=np.asarray(micro_batch),
            seq_len=self.seq_len,
            sequence_parallel=self.sharding == "megatron-sp",
            cp_kind=self.cp_kind,
            flash_attention=self.flash_attention,
            ep=np.asarray(ep),
            etp=np.asarray(etp),
            imbalance=self.imbalance,
            modules=self.modules,
        )


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
    names = [item.name for item in fields(Atom)]
    tables = [np.zeros((len(names), 1))]
    rows: dict[Wanted, int] = {}
    size = 1
    for family, here in places.items():
        pairs = list(here)
        for treatment in treatments[family]:
            found = _atoms(pairs, treatment, precision, machine, known)
            tables.append(np.empty((len(names), len(pairs))))
            for name, column in zip(names, tables[-1], strict=True):
                column[:] = getattr(found, name)
            for number, (site, place) in enumerate(pairs, size):
                rows[site, place, treatment] = number
            size += len(pairs)
    columns = np.concatenate(tables, axis=1)
    return Atom(**dict(zip(names, columns, strict=True))), rows


def _atoms(
    pairs: Sequence[tuple[Site, Place]],
    treatment: Treatment,
    precision: Precision,
    machine: Machine,
    known: Known,
) -> Atom:
    """Of blocks at their places under one treatment; made once."""
    sites = tuple((site.family, id(site.block), site.imbalance) for site, _ in pairs)
    key = (sites, tuple(place for _, place in pairs), precision)
    priced = known.once(key, partial(_operators, pairs, precision, machine))
    packer = Packer.of(machine, precision)
    return known.once((*key, treatment), partial(_treated, treatment, priced, packer))


_Priced = tuple[Block, dict[str, OperatorPrice], Whole, Array]


def _operators(
    pairs: Sequence[tuple[Site, Place]], precision: Precision, machine: Machine
) -> _Priced:
    """A block, the prices of its operators and their sum, and the bytes that it is
    entered with."""
    block = _stacked([site.block for site, _ in pairs])
    degrees = pairs[0][0].degrees([place for _, place in pairs])
    prices = block_prices(block, degrees, precision, machine)
    return block, prices, Whole.of(prices), entry_bytes(block, degrees, precision)


def _treated(treatment: Treatment, priced: _Priced, packer: Packer) -> Atom:
    block, prices, whole, entry = priced
    if isinstance(treatment, Tied):
        made = shared_parameters if treatment.twice else tied_parameters
        return made(prices[treatment.operator])
    require_priced(treatment, block)
    software = packer.machine.software
    return atom(
        block,
        prices,
        treatment,
        entry,
        whole=whole,
        stops_early=software.stops_early,
        floor=software.launch_floor,
        packer=packer,
    )


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
