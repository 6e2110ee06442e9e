"""The stages of finished layouts, priced: what is alike is priced once, as one array.

    layouts → the kinds of their stages: how many of which blocks, where → `_Batch.ask`
            → their blocks, one array for all the places of a block      → `atom_table`
            → the kinds, one array for all that a machine runs           → `_priced`

One layout alone goes the same way, so that a table of runs and a single question get
the same numbers.

A layout over unlike islands: its stages, and what its devices are together.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from itertools import zip_longest

import numpy as np

from costmodel.layout import LayerPlan, Layout, Offload, Ranges, Stage, segments_of
from costmodel.machine import Machine
from costmodel.operators import OperatorPrice, Work
from costmodel.stages.block_batch import (
    Carried,
    Known,
    Site,
    Tied,
    Wanted,
    atom_table,
)
from costmodel.stages.block_cost import Atom, block_prices, recomputed_operators
from costmodel.stages.contents import Part, contents_of
from costmodel.stages.data_parallelism import (
    DataParallel,
    degrees_of,
    parallel_of,
    place_of,
)
from costmodel.stages.islands import (
    Span,
    devices_by_rank,
    machines_of,
    slowest,
    spans_of,
)
from costmodel.stages.pipeline_p2p import held_together
from costmodel.stages.stage_cost import StagePrice, stage_price
from profiles.errors import InvalidSpec, MeshwrightError
from profiles.hardware import Island, Precision
from profiles.models import Block, Job

Parts = tuple[tuple[Wanted, int], ...]  # so many of what


@dataclass(frozen=True, slots=True)
class _Kind:
    """Stages that are priced alike."""

    parts: Parts
    segments: tuple[Parts, ...]  # those that are made again together
    parallel: DataParallel
    micro_batches: int


@dataclass(kw_only=True)
class LayoutPricer:
    """Prices the stages of one layout of one job."""

    job: Job
    layout: Layout
    machine: Machine
    known: Known = field(default_factory=Known)
    _columns: StagePrice | None = None
    _operators: dict[object, dict[str, OperatorPrice]] = field(default_factory=dict)

    def columns(self) -> StagePrice:
        """The price of every virtual stage, in model order, as arrays.

        Raises InvalidSpec if the layout's layers are not the model's.
        """
        if self._columns is None:
            _price([self])
        assert self._columns is not None
        return self._columns

    def stages(self) -> list[StagePrice]:
        """The same, one price a stage."""
        columns = self.columns()
        return [columns[number] for number in range(len(self.layout.stages))]

    def work(self, stage: Stage) -> Work:
        """A micro-batch through *stage*, there and back, with what is recomputed."""
        graph = self.job.graph
        blocks = dict(zip(graph.layer_names, graph.layers, strict=True))
        total = Work()
        for name, plan in zip(stage.layers, stage.plans, strict=True):
            block = blocks[name]
            prices = self.operator_prices(block, plan, stage)
            for price in prices.values():
                total = total + price.forward + price.backward
            redone = recomputed_operators(
                block,
                plan.retention.recomputed,
                stops_early=self.machine.framework.stops_early,
            )
            for again in redone:
                total = total + prices[again].forward
        return total

    def operator_prices(
        self, block: Block, plan: LayerPlan, stage: Stage
    ) -> dict[str, OperatorPrice]:
        """Each operator of a *block* of *stage*, by name."""
        place = place_of(stage.mesh, self.layout.micro_batch(stage))
        key = (block.name, plan.sharding, plan.modules, place)
        if key not in self._operators:
            self._operators[key] = block_prices(
                block,
                _site(self, block, plan).degrees(place),
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
        with suppress(MeshwrightError):
            layout, optimizer = pricer.layout, pricer.job.optimizer
            key = (id(pricer.machine), layout.precision, optimizer, layout.away)
            groups[key].append(pricer)
    for group in groups.values():
        with suppress(MeshwrightError):
            _price(group)


def _price(pricers: Sequence[LayoutPricer]) -> None:
    """Price layouts of one machine, precision, optimizer and offloading of states."""
    first = pricers[0]
    batch = _Batch(
        machine=first.machine,
        precision=first.layout.precision,
        optimizer=first.job.optimizer,
        offload=first.layout.away,
        known=first.known,
    )
    numbers = [batch.ask(pricer) for pricer in pricers]
    prices = batch.prices()
    for pricer, own in zip(pricers, numbers, strict=True):
        pricer._columns = prices[np.array(own)]


@dataclass(kw_only=True)
class _Batch:
    """The kinds of stages that one machine runs in one precision, numbered."""

    machine: Machine
    precision: Precision
    optimizer: str
    offload: Offload
    known: Known
    _sites: dict[object, Site] = field(default_factory=dict)
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
            redone = segments_of(stage, blocks)
            more = self._shared(pricer, stage)
            key = (tuple(counts.items()), more, redone, degrees_of(stage.mesh))
            if key not in known:
                kind = self._kind(pricer, stage, blocks, counts, redone, more)
                known[key] = self._kinds.setdefault(kind, len(self._kinds))
            numbers.append(known[key])
        return numbers

    def prices(self) -> StagePrice:
        """The prices of the kinds as arrays, in order of their numbers."""
        kinds = list(self._kinds)
        wanted = dict.fromkeys(part for kind in kinds for part, _ in kind.parts)
        table, rows = atom_table(wanted, self.precision, self.machine, self.known)
        segments = zip_longest(*(kind.segments for kind in kinds), fillvalue=())
        contents = contents_of(
            _side_by_side([kind.parts for kind in kinds], table, rows),
            self.precision,
            [_side_by_side(several, table, rows) for several in segments],
        )
        found = stage_price(
            contents,
            DataParallel.of([kind.parallel for kind in kinds]),
            self.precision,
            self.machine,
            self.optimizer,
            self.offload,
            np.array([kind.micro_batches for kind in kinds]),
        )
        return found.each(lambda column: np.broadcast_to(column, len(kinds)))

    def _kind(
        self,
        pricer: LayoutPricer,
        stage: Stage,
        blocks: Sequence[Block],
        counts: Mapping[tuple[int, int], int],
        redone: Sequence[range],
        more: Parts,
    ) -> _Kind:
        place = place_of(stage.mesh, pricer.layout.micro_batch(stage))
        block_of = {id(block): block for block in blocks}
        plan_of = {id(plan): plan for plan in stage.plans}
        parts: Counter[Wanted] = Counter()
        for (block, number), count in counts.items():
            plan = plan_of[number]
            site = self._site(pricer, block_of[block], plan)
            parts[site, place, plan.retention] += count
        for part, count in more:
            parts[part] += count
        segments = (
            Counter(
                (self._site(pricer, blocks[one], plan), place, plan.retention)
                for one in run
                for plan in [stage.plans[one]]
            )
            for run in redone
        )
        on_drives = self.offload.tier == "nvme"
        shares_hosts = self.offload.states or on_drives
        pp = pricer.layout.pp if shares_hosts else 1  # just where it is used
        together = pricer.layout.gpus <= pricer.machine.island.domain
        parallel = parallel_of(stage, pp, pricer.layout.zero_plus, together=together)
        m = pricer.layout.micro_batches // len(stage.held_by)
        m = m if self.offload.optimizer and on_drives else 1
        distinct = dict.fromkeys(tuple(one.items()) for one in segments)
        return _Kind(tuple(parts.items()), tuple(distinct), parallel, m)

    def _shared(self, pricer: LayoutPricer, stage: Stage) -> Parts:
        """Parameters that layers of *stage* share, and what it holds of tensors that
        come to it from layers further before."""
        graph, place = (
            pricer.job.graph,
            place_of(stage.mesh, pricer.layout.micro_batch(stage)),
        )
        found: list[tuple[Wanted, int]] = []
        for held in held_together(graph, stage):
            plan = stage.plans[stage.layers.index(held.layer)]
            site = self._site(pricer, graph.layer_blocks[held.layer], plan)
            if held.count > 1:
                tied = Tied(held.operator, twice=True)
                found.append(((site, place, tied), 1 - held.count))
            if not held.alone and self.offload.optimizer:  # else nobody asks
                tied = Tied(held.operator, twice=False)
                found.append(((site, place, tied), 1))
        for skip in graph.skips:
            if skip.passes(graph.layer_names.index(stage.layers[0]) - 1):
                site = self._site(pricer, graph.layers[skip.last], stage.plans[0])
                found.append(((site, place, Carried(skip.tensor)), 1))
        return tuple(found)

    def _site(self, pricer: LayoutPricer, block: Block, plan: LayerPlan) -> Site:
        layout = pricer.layout
        key = (
            *(id(block), pricer.job.seq_len, plan.sharding, plan.modules),
            *(layout.cp_kind, layout.flash_attention),
        )
        if key not in self._sites:
            self._sites[key] = _site(pricer, block, plan)
        return self._sites[key]


def _side_by_side(
    stages: Sequence[Parts], table: Atom, rows: Mapping[Wanted, int]
) -> list[Part]:
    """The first part of each stage, the second …; 0 of nothing where it has fewer.

    *rows* says where in *table* each part's atom is; row 0 is none.
    """
    found = []
    for place in zip_longest(*stages, fillvalue=(None, 0)):
        counts = np.array([count for _, count in place])
        index = [0 if part is None else rows[part] for part, _ in place]
        found.append((counts, table[np.array(index)]))
    return found


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


def _site(pricer: LayoutPricer, block: Block, plan: LayerPlan) -> Site:
    return Site(
        block=block,
        seq_len=pricer.job.seq_len,
        sharding=plan.sharding,
        cp_kind=pricer.layout.cp_kind,
        flash_attention=pricer.layout.flash_attention,
        imbalance=pricer.machine.imbalance,
        modules=plan.modules,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Reliability:
    """A job's nodes: how many, how often any of them fails, how fast their drives take
    a checkpoint together, what the smallest host holds (None: nobody says)."""

    nodes: int
    devices_per_node: int  # of the largest
    failures_per_s: float | None = None
    drives_bytes_per_s: float | None = None
    host_bytes: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Devices:
    """What a job runs on: means over its devices, and what each pipeline rank has."""

    name: str
    peak_flops_per_s: float
    cost: float | None  # dollars for one device and hour
    power_w: float | None
    capacities_bytes: tuple[float, ...]  # of the smallest device of each rank
    reliability: Reliability | None = None


@dataclass(kw_only=True)
class Placed:
    """A layout's pricer on whatever its ranks are: on one island, or on several."""

    pricer: LayoutPricer

    @cached_property
    def _machines(self) -> list[tuple[Machine, ...]]:
        """What each stage runs on."""
        on, stages = self.pricer.machine, self.pricer.layout.stages
        return [machines_of(on, [stage.mesh.ranks]) for stage in stages]

    @cached_property
    def _alone(self) -> dict[int, LayoutPricer]:
        """The layout as if all of it ran on each of the machines, by their identity."""
        job, layout = self.pricer.job, self.pricer.layout
        distinct = {id(on): on for several in self._machines for on in several}
        return {
            key: LayoutPricer(job=job, layout=layout, machine=on)
            for key, on in distinct.items()
        }

    @property
    def pricers(self) -> list[LayoutPricer]:
        """Those to price (`price_together`) before the stages are."""
        if len(self.pricer.machine.cluster.islands) == 1:
            return [self.pricer]
        return list(self._alone.values())

    def columns(self) -> StagePrice:
        """The price of every virtual stage, in model order, as arrays."""
        if len(self.pricer.machine.cluster.islands) == 1:
            return self.pricer.columns()
        rows = []
        for number, machines in enumerate(self._machines):
            here = (self._alone[id(on)].columns() for on in machines)
            prices = [columns[[number]] for columns in here]
            rows.append(slowest(prices, self.pricer.layout.micro_batches))
        first, *others = rows
        return first.each(lambda *each: np.concatenate(each), *others)


def devices_of(layout: Layout, on: Machine) -> Devices:
    """The devices that *layout* runs on."""
    number = layout.precision.matmul
    spans = spans_of(on.cluster)
    meshes = {stage.mesh.ranks for stage in layout.stages}
    counts = [_count(span, meshes) for span in spans]
    islands = [
        (span.island, count) for span, count in zip(spans, counts, strict=True) if count
    ]
    used = [(island.device, count) for island, count in islands]
    return Devices(
        name=" + ".join(dict.fromkeys(device.name for device, _ in used)),
        peak_flops_per_s=_mean([(d.peak_flops_per_s(number), n) for d, n in used]),
        cost=_known_mean([(one.device_dollars_per_h, n) for one, n in islands]),
        power_w=_known_mean([(one.device_power_w, n) for one, n in islands]),
        capacities_bytes=tuple(
            device.capacity_bytes for device in devices_by_rank(layout, on)
        ),
        reliability=_reliability(islands),
    )


def _reliability(islands: Sequence[tuple[Island, int]]) -> Reliability:
    """Of nodes that fail apart from each other."""
    nodes = [(one, -(-count // one.devices_per_node)) for one, count in islands]
    failing = [n / one.mtbf.si for one, n in nodes if one.mtbf is not None]
    writing = [n * one.drive_write.si for one, n in nodes if one.drive_write]
    holding = [one.host_memory.si for one, _ in nodes if one.host_memory]
    return Reliability(
        nodes=sum(n for _, n in nodes),
        devices_per_node=max(one.devices_per_node for one, _ in nodes),
        failures_per_s=sum(failing) if len(failing) == len(nodes) else None,
        drives_bytes_per_s=sum(writing) if len(writing) == len(nodes) else None,
        host_bytes=min(holding) if len(holding) == len(nodes) else None,
    )


def _count(span: Span, meshes: set[Ranges]) -> int:
    """How many of the ranks of *meshes* are on an island."""
    count = 0
    for ranks in meshes:
        for first, last in ranks.spans:
            low, high = max(first, span.first), last
            high = high if span.last is None else min(high, span.last)
            count += max(high - low + 1, 0)
    return count


def _mean(parts: Sequence[tuple[float, int]]) -> float:
    if len(parts) == 1:
        return parts[0][0]
    return sum(value * n for value, n in parts) / sum(n for _, n in parts)


def _known_mean(parts: Sequence[tuple[float | None, int]]) -> float | None:
    known = [(value, n) for value, n in parts if value is not None]
    return _mean(known) if len(known) == len(parts) else None
