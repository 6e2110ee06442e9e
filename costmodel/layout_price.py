"""The stages of a finished layout, priced: each distinct one once."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

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
from costmodel.retention import require_priced
from costmodel.sharding import Degrees, entry_bytes
from costmodel.stage import StagePrice, stage_price
from costmodel.tied import tied_holder
from costmodel.work import OperatorPrice, Work
from profiles.errors import InvalidSpec, Unsupported
from profiles.graph import Block
from profiles.job import Job


@dataclass(kw_only=True)
class LayoutPricer:
    """Prices stages of one layout of one job, remembering equal blocks and stages."""

    job: Job
    layout: Layout
    machine: Machine
    _operators: dict[object, dict[str, OperatorPrice]] = field(default_factory=dict)
    _atoms: dict[object, Atom] = field(default_factory=dict)
    _stages: dict[object, StagePrice] = field(default_factory=dict)

    @cached_property
    def _blocks(self) -> dict[str, Block]:
        graph = self.job.graph
        return dict(zip(graph.layer_names, graph.layers, strict=True))

    def stages(self) -> list[StagePrice]:
        """The price of every virtual stage, in model order.

        Raises InvalidSpec if the layout's layers are not the model's.
        """
        named = tuple(name for stage in self.layout.stages for name in stage.layers)
        if named != self.job.graph.layer_names:
            raise InvalidSpec(
                f"the layout names {len(named)} layers, {self.job.model} has "
                f"{len(self.job.graph.layer_names)}: embedding, 0-"
                f"{self.job.graph.body - 1}, final_norm and head, each once, in order"
            )
        return [self.price(stage) for stage in self.layout.stages]

    def work(self, stage: Stage) -> Work:
        """A micro-batch through *stage*, there and back, with what is recomputed."""
        total = Work()
        for name, plan in zip(stage.layers, stage.plans, strict=True):
            block = self._blocks[name]
            prices = self._operators[self._where(block, plan, stage)]
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

    def price(self, stage: Stage) -> StagePrice:
        """The price of one virtual stage."""
        parts = Counter(
            (self._blocks[name].name, plan)
            for name, plan in zip(stage.layers, stage.plans, strict=True)
        )
        mesh = stage.mesh
        shape = (mesh.tp, mesh.cp, mesh.dp_shard, mesh.dp_replicate)
        key = (shape, tuple(parts.items()))
        if key not in self._stages:
            priced = [
                (count, self._atom(self.job.graph.block(name), plan, stage))
                for (name, plan), count in parts.items()
            ]
            if self._has_both_holders(stage):
                priced.append((-1, self._shared(stage)))
            self._stages[key] = stage_price(
                priced,
                data_parallel(mesh, _one_zero(stage)),
                self.layout.precision,
                self.machine,
                self.job.optimizer,
            )
        return self._stages[key]

    def _has_both_holders(self, stage: Stage) -> bool:
        return any(
            all(block in stage.layers for block, _ in holders)
            for holders in self.job.graph.tied
        )

    def _shared(self, stage: Stage) -> Atom:
        block, operator = tied_holder(self.job.graph)
        plan = stage.plans[stage.layers.index(block)]
        where = self._where(self.job.graph.block(block), plan, stage)
        return shared_parameters(self._operators[where][operator])

    def _where(self, block: Block, plan: LayerPlan, stage: Stage) -> object:
        """What the prices of a block's operators hang on."""
        shape = (stage.mesh.tp, stage.mesh.cp, self.layout.micro_batch(stage))
        return (block.name, plan.sharding, *shape)

    def _atom(self, block: Block, plan: LayerPlan, stage: Stage) -> Atom:
        mesh, size = stage.mesh, self.layout.micro_batch(stage)
        where = self._where(block, plan, stage)
        key = (where, plan.retention)
        if key not in self._atoms:
            require_priced(plan.retention, block)
            degrees = Degrees(
                tp=np.asarray(mesh.tp),
                cp=np.asarray(mesh.cp),
                micro_batch=np.asarray(size),
                seq_len=self.job.seq_len,
                sequence_parallel=plan.sharding == "megatron-sp",
                cp_kind=self.layout.cp_kind,
                flash_attention=self.layout.flash_attention,
            )
            if where not in self._operators:
                self._operators[where] = block_prices(
                    block, degrees, self.layout.precision, self.machine
                )
            self._atoms[key] = atom(
                block,
                self._operators[where],
                plan.retention,
                entry_bytes(block, degrees, self.layout.precision),
                stops_early=self.machine.software.stops_early,
            )
        return self._atoms[key]


def data_parallel(mesh: Mesh, zero: int) -> DataParallel:
    """The data-parallel side of a stage's mesh."""
    return DataParallel(
        tp=np.asarray(mesh.tp),
        cp=np.asarray(mesh.cp),
        dp=np.asarray(mesh.dp),
        zero=np.asarray(zero),
        zero_group=np.asarray(mesh.dp_shard),
    )


def _one_zero(stage: Stage) -> int:
    levels = {plan.zero for plan in stage.plans}
    if len(levels) > 1:
        raise Unsupported(
            f"layers of one stage with ZeRO levels {sorted(levels)} are not priced "
            "yet; give all layers of a stage one level"
        )
    return levels.pop()
