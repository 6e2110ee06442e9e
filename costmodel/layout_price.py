"""The stages of finished layouts, priced: what is alike is priced once, as one array.

    layouts → the kinds of their stages: how many of which blocks, where → `_Batch.ask`
            → their blocks, one array for all the places of a block      → `_atoms`
            → the kinds, one array for all that a machine runs           → `_priced`

One layout alone goes the same way, so that a table of runs and a single question get
the same numbers.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from costmodel.atoms import (
    Atom,
    atom,
    block_prices,
    recomputed_operators,
    shared_parameters,
)
from costmodel.data_parallel import DataParallel
from costmodel.layout import LayerPlan, Layout, Mesh, Stage
from costmodel.machine import Machine
from costmodel.retention import Retention, require_priced
from costmodel.sharding import Degrees, entry_bytes
from costmodel.stage import Part, StagePrice, stage_price
from costmodel.tied import tied_holder
from costmodel.work import OperatorPrice, Work
from profiles.errors import InvalidSpec, MeshwrightError, Unsupported
from profiles.graph import Block
from profiles.job import Job
from profiles.precision import Precision

Array = NDArray[Any]
Place = tuple[int, int, int]  # tp, cp, micro-batch: what varies inside one array
Treatment = Retention | str  # or the operator whose parameters are held twice


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Site:
    """A block, and what all its places have in common."""

    block: Block
    seq_len: int
    sharding: str
    cp_kind: str
    flash_attention: bool

    def degrees(self, places: Sequence[Place]) -> Degrees:
        """The places as arrays; one alone as numbers."""
        tp, cp, micro_batch = np.array(places[0] if len(places) == 1 else places).T
        return Degrees(
            tp=np.asarray(tp),
            cp=np.asarray(cp),
            micro_batch=np.asarray(micro_batch),
            seq_len=self.seq_len,
            sequence_parallel=self.sharding == "megatron-sp",
            cp_kind=self.cp_kind,
            flash_attention=self.flash_attention,
        )


_Wanted = tuple[_Site, Place, Treatment]


@dataclass(frozen=True, slots=True)
class _Kind:
    """Stages that are priced alike."""

    parts: tuple[tuple[int, _Wanted], ...]  # how many of what
    mesh: tuple[int, int, int, int, int]  # tp, cp, dp, ZeRO level and group


@dataclass(kw_only=True)
class LayoutPricer:
    """Prices the stages of one layout of one job."""

    job: Job
    layout: Layout
    machine: Machine
    _stages: list[StagePrice] | None = None
    _operators: dict[object, dict[str, OperatorPrice]] = field(default_factory=dict)

    def stages(self) -> list[StagePrice]:
        """The price of every virtual stage, in model order.

        Raises InvalidSpec if the layout's layers are not the model's.
        """
        if self._stages is None:
            _price([self])
        assert self._stages is not None
        return self._stages

    def work(self, stage: Stage) -> Work:
        """A micro-batch through *stage*, there and back, with what is recomputed."""
        graph = self.job.graph
        blocks = dict(zip(graph.layer_names, graph.layers, strict=True))
        total = Work()
        for name, plan in zip(stage.layers, stage.plans, strict=True):
            block = blocks[name]
            prices = self._prices(block, plan, stage)
            for price in prices.values():
                total = total + price.forward + price.backward
            redone = recomputed_operators(
                block,
                plan.retention.recomputed,
                stops_early=self.machine.software.stops_early,
            )
            for again in redone:
                total = total + prices[again].forward
        return total

    def _prices(
        self, block: Block, plan: LayerPlan, stage: Stage
    ) -> dict[str, OperatorPrice]:
        place = _place(self.layout, stage)
        key = (block.name, plan.sharding, place)
        if key not in self._operators:
            self._operators[key] = block_prices(
                block,
                _site(self, block, plan).degrees([place]),
                self.layout.precision,
                self.machine,
            )
        return self._operators[key]


def price_together(pricers: Iterable[LayoutPricer]) -> None:
    """Price the stages of several layouts; whatever they share is priced once.

    A layout that cannot be priced is left alone, and says why when it is asked.
    """
    groups: dict[object, list[LayoutPricer]] = defaultdict(list)
    for pricer in pricers:
        precision, optimizer = pricer.layout.precision, pricer.job.optimizer
        groups[id(pricer.machine), precision, optimizer].append(pricer)
    for group in groups.values():
        with suppress(MeshwrightError):
            _price(group)


def _price(pricers: Sequence[LayoutPricer]) -> None:
    """Price layouts of one machine, precision and optimizer."""
    first = pricers[0]
    batch = _Batch(
        machine=first.machine,
        precision=first.layout.precision,
        optimizer=first.job.optimizer,
    )
    numbers = [batch.ask(pricer) for pricer in pricers]
    prices = batch.prices()
    for pricer, own in zip(pricers, numbers, strict=True):
        pricer._stages = [prices[number] for number in own]


@dataclass(kw_only=True)
class _Batch:
    """The kinds of stages that one machine runs in one precision, numbered."""

    machine: Machine
    precision: Precision
    optimizer: str
    _sites: dict[object, _Site] = field(default_factory=dict)
    _kinds: dict[_Kind, int] = field(default_factory=dict)

    def ask(self, pricer: LayoutPricer) -> list[int]:
        """The number of the kind of each of a layout's stages.

        Raises InvalidSpec if its layers are not the model's.
        """
        layers = _layers(pricer)
        known: dict[object, int] = {}
        numbers, first = [], 0
        for stage in pricer.layout.stages:
            blocks = layers[first : first + len(stage.layers)]
            first += len(stage.layers)
            counts = Counter(zip(map(id, blocks), map(id, stage.plans), strict=True))
            key = (tuple(counts.items()), _mesh(stage.mesh))
            if key not in known:
                kind = self._kind(pricer, stage, blocks, counts)
                known[key] = self._kinds.setdefault(kind, len(self._kinds))
            numbers.append(known[key])
        return numbers

    def prices(self) -> list[StagePrice]:
        """The price of each kind, in order of its number."""
        wanted = {part for kind in self._kinds for _, part in kind.parts}
        table, rows = _atoms(wanted, self.precision, self.machine)
        found = stage_price(
            _parts(list(self._kinds), table, rows),
            _parallel(np.array([kind.mesh for kind in self._kinds]).T),
            self.precision,
            self.machine,
            self.optimizer,
        )
        columns = [
            np.broadcast_to(getattr(found, item.name), len(self._kinds))
            for item in fields(StagePrice)
        ]
        names = [item.name for item in fields(StagePrice)]
        return [
            StagePrice(**dict(zip(names, row, strict=True)))
            for row in zip(*columns, strict=True)
        ]

    def _kind(
        self,
        pricer: LayoutPricer,
        stage: Stage,
        blocks: Sequence[Block],
        counts: Mapping[tuple[int, int], int],
    ) -> _Kind:
        place = _place(pricer.layout, stage)
        block_of = {id(block): block for block in blocks}
        plan_of = {id(plan): plan for plan in stage.plans}
        parts: Counter[_Wanted] = Counter()
        for (block, plan), count in counts.items():
            retention = plan_of[plan].retention
            require_priced(retention, block_of[block])
            site = self._site(pricer, block_of[block], plan_of[plan])
            parts[site, place, retention] += count
        if _has_both_holders(pricer, stage):
            name, operator = tied_holder(pricer.job.graph)
            plan = stage.plans[stage.layers.index(name)]
            site = self._site(pricer, pricer.job.graph.block(name), plan)
            parts[site, place, operator] -= 1
        return _Kind(
            tuple((count, part) for part, count in parts.items()),
            (*_mesh(stage.mesh)[:3], _one_zero(stage), stage.mesh.dp_shard),
        )

    def _site(self, pricer: LayoutPricer, block: Block, plan: LayerPlan) -> _Site:
        layout = pricer.layout
        key = (
            *(id(block), pricer.job.seq_len, plan.sharding),
            *(layout.cp_kind, layout.flash_attention),
        )
        if key not in self._sites:
            self._sites[key] = _site(pricer, block, plan)
        return self._sites[key]


def _atoms(
    wanted: Iterable[_Wanted], precision: Precision, machine: Machine
) -> tuple[Atom, dict[_Wanted, int]]:
    """Atoms of all that is wanted in one table, and the row of each; row 0 is none."""
    places: dict[_Site, dict[Place, None]] = defaultdict(dict)
    treatments: dict[_Site, dict[Treatment, None]] = defaultdict(dict)
    for site, place, treatment in wanted:
        places[site][place] = None
        treatments[site][treatment] = None
    columns = {item.name: [np.zeros(1)] for item in fields(Atom)}
    rows: dict[_Wanted, int] = {}
    size = 1
    for site, here in places.items():
        degrees = site.degrees(list(here))
        prices = block_prices(site.block, degrees, precision, machine)
        entry = entry_bytes(site.block, degrees, precision)
        for treatment in treatments[site]:
            found = (
                shared_parameters(prices[treatment])
                if isinstance(treatment, str)
                else atom(
                    site.block,
                    prices,
                    treatment,
                    entry,
                    stops_early=machine.software.stops_early,
                )
            )
            for name, column in columns.items():
                column.append(np.broadcast_to(getattr(found, name), len(here)))
            for number, place in enumerate(here, size):
                rows[site, place, treatment] = number
            size += len(here)
    table = {name: np.concatenate(column) for name, column in columns.items()}
    return Atom(**table), rows


def _parts(
    kinds: Sequence[_Kind], table: Atom, rows: Mapping[_Wanted, int]
) -> list[Part]:
    """The first part of each kind, the second …; 0 of nothing where it has fewer."""
    most = max(len(kind.parts) for kind in kinds)
    counts = np.zeros((most, len(kinds)), dtype=np.int64)
    index = np.zeros_like(counts)
    for column, kind in enumerate(kinds):
        for place, (count, part) in enumerate(kind.parts):
            counts[place, column] = count
            index[place, column] = rows[part]
    return [(one, table.take(row)) for one, row in zip(counts, index, strict=True)]


def data_parallel(mesh: Mesh, zero: int) -> DataParallel:
    """The data-parallel side of a stage's mesh."""
    return _parallel(np.array([*_mesh(mesh)[:3], zero, mesh.dp_shard]))


def _parallel(columns: Array) -> DataParallel:
    tp, cp, dp, zero, group = map(np.asarray, columns)
    return DataParallel(tp=tp, cp=cp, dp=dp, zero=zero, zero_group=group)


def _layers(pricer: LayoutPricer) -> tuple[Block, ...]:
    graph, layout = pricer.job.graph, pricer.layout
    named = tuple(name for stage in layout.stages for name in stage.layers)
    if named != graph.layer_names:
        raise InvalidSpec(
            f"the layout names {len(named)} layers, {pricer.job.model} has "
            f"{len(graph.layer_names)}: embedding, 0-{graph.body - 1}, final_norm and "
            "head, each once, in order"
        )
    return graph.layers


def _site(pricer: LayoutPricer, block: Block, plan: LayerPlan) -> _Site:
    return _Site(
        block=block,
        seq_len=pricer.job.seq_len,
        sharding=plan.sharding,
        cp_kind=pricer.layout.cp_kind,
        flash_attention=pricer.layout.flash_attention,
    )


def _place(layout: Layout, stage: Stage) -> Place:
    return stage.mesh.tp, stage.mesh.cp, layout.micro_batch(stage)


def _mesh(mesh: Mesh) -> tuple[int, int, int, int]:
    return mesh.tp, mesh.cp, mesh.dp, mesh.dp_shard


def _has_both_holders(pricer: LayoutPricer, stage: Stage) -> bool:
    return any(
        all(block in stage.layers for block, _ in holders)
        for holders in pricer.job.graph.tied
    )


def _one_zero(stage: Stage) -> int:
    levels = {plan.zero for plan in stage.plans}
    if len(levels) > 1:
        raise Unsupported(
            f"layers of one stage with ZeRO levels {sorted(levels)} are not priced "
            "yet; give all layers of a stage one level"
        )
    return levels.pop()
