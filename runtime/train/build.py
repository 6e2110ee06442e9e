"""The order of composition, on one screen: from a layout to the modules of one rank.

    plain modules → first values → context parallel → tensor parallel
                  → expert parallel → products in 8 bits → split backward
                  → compiled → recompute → precision → replicas

Parameters are made on the device, from the meta device, by the stage that holds them;
those whose shards will be on the host wait there, a unit at a time on the device.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

import torch
from torch import nn

from costmodel.layout import Layout
from costmodel.layout import Stage as StagePlan
from costmodel.operators import GradientCompression
from costmodel.schedule import schedule_called
from profiles.models import Job
from runtime.models import (
    Deferred,
    ExpertMlp,
    Layer,
    Stage,
    decoder_of,
    defer_weight_grads,
    initialise,
    policy,
)
from runtime.offload import StateOffload, level
from runtime.parallel import (
    AfterEachW,
    AfterW,
    Buffered,
    Context,
    DataParallel,
    Meshes,
    Replicas,
    Sharded,
    Sharding,
    Unit,
    ZeroPlusGroups,
    context_parallel,
    expert_parallel,
    multiply_emulated,
    multiply_in_eight_bits,
    one_axis,
    reduction_of,
    replicas,
    split_layer_as,
    tensor_parallel,
)
from runtime.pipeline import PipelineStage
from runtime.remat import Quantizer
from runtime.remat import apply as retention
from runtime.train.compile import compile_layer


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalStage(PipelineStage):
    """A virtual stage on this rank, one of *copies*, and its data parallelism."""

    parallel: DataParallel
    sequence_parallel: bool
    replicas: Replicas
    copies: int
    away: StateOffload
    quantizer: Quantizer = field(default_factory=Quantizer)

    def named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        return self.module.named_parameters()


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """How a rank makes its modules: their first values are of *seed*, on *device*.

    *compiled*: torch.compile of each layer; whole *gradients* are all-reduced so;
    within *budget_bytes*, where given, passes save by dynamic rematerialization; what
    is saved on a drive is in files of *offload_dir* (None: of the folder of temporary
    files).
    """

    seed: int
    device: torch.device
    compiled: bool = False
    offload_dir: Path | None = None
    gradients: GradientCompression = field(default_factory=GradientCompression)
    budget_bytes: float | None = None


@dataclass(frozen=True)
class Builder:
    """Makes the virtual stages of *layout* that this rank holds."""

    job: Job
    layout: Layout
    meshes: Meshes
    context: Context
    setup: Setup

    def stages(self) -> list[LocalStage]:
        """All of them, ready to train, in model order."""
        rank = self.meshes.weights["pp"].get_local_rank()
        groups = replicas(self.layout, self.meshes, zero=self._zero)
        assert self._zero_plus is None or self._zero == 3, "ZeRO++ is of ZeRO-3"
        return [
            self._stage(index, rank, groups[index])
            for index, plan in enumerate(self.layout.stages)
            if rank in plan.held_by
        ]

    @property
    def _zero(self) -> int:
        plan, ranks = self.layout.stages[0].plans[0], self.meshes.weights["dp"].size()
        return level(plan.zero, self.layout.offload, ranks=ranks)

    @cached_property
    def _zero_plus(self) -> ZeroPlusGroups | None:
        return ZeroPlusGroups.of(self.layout.zero_plus, self.meshes.weights)

    def _stage(self, index: int, rank: int, alike: Replicas) -> LocalStage:
        layout, plan = self.layout, self.layout.stages[index]
        spec, rules = decoder_of(self.job), policy(layout.precision_name)
        split = plan.plans[0].sharding == "megatron-sp" and plan.mesh.tp > 1
        away = StateOffload.of(layout.offload, self._zero)
        stage = self._filled(plan, away)
        context_parallel.split(stage, self.context)
        self._split(stage, plan, split)
        for layer in stage.layers.values() if rules.eight_bits else ():
            multiply_in_eight_bits(layer)
        if rules.emulated is not None:
            for layer in stage.layers.values():
                multiply_emulated(layer, rules.emulated)
        later = (
            defer_weight_grads(stage)
            if schedule_called(layout.schedule).splits
            else None
        )
        for layer in stage.layers.values() if self.setup.compiled else ():
            compile_layer(layer)
        named = zip(plan.layers, plan.plans, strict=True)
        quantizer = retention.apply(
            stage,
            [one.retention for name, one in named if name.isdigit()],
            dropout=spec.most_dropped > 0,
            device=self.setup.device,
            folder=self.setup.offload_dir,
        )
        ranks = self.context.ranks * (plan.mesh.tp if split else 1)
        return LocalStage(
            index=index,
            module=stage,
            first=index == 0,
            last=index == len(layout.stages) - 1,
            boundary=(layout.micro_batch(plan), self.job.seq_len // ranks, spec.hidden),
            dtype=rules.activation,
            device=self.setup.device,
            copy=plan.held_by.index(rank),
            later=later,
            parallel=self._parallel(stage, away, alike, later, len(plan.held_by)),
            sequence_parallel=split,
            replicas=alike,
            copies=len(plan.held_by),
            away=away,
            quantizer=quantizer,
        )

    def _filled(self, plan: StagePlan, away: StateOffload) -> Stage:
        """The plain modules of a stage, with their first values."""
        spec, setup = decoder_of(self.job), self.setup
        with torch.device("meta"):
            stage = Stage(spec, plan.layers)
        for prefix, unit in _units(stage):
            initialise(
                unit,
                prefix=prefix,
                layers=spec.layers,
                seed=setup.seed,
                device=setup.device,
            )
            if away.shards:
                unit.to("cpu")
        stage.tie()
        return stage

    def _split(self, stage: Stage, plan: StagePlan, sequence_parallel: bool) -> None:
        """Its layers over tp, as presets or modules of their own; experts over ep, and
        balanced for whole sequences."""
        mesh, named = (
            self.meshes.weights["tp"],
            zip(plan.layers, plan.plans, strict=True),
        )
        explicit = {name: one.modules for name, one in named if one.modules}
        tensor_parallel.split(
            stage, mesh, sequence_parallel=sequence_parallel, apart=explicit
        )
        for name, modules in explicit.items():
            block = self.job.graph.layer_blocks[name]
            split_layer_as(stage.layers[name], block, modules, mesh)  # type: ignore[arg-type]
        for mlp in stage.modules():
            if isinstance(mlp, ExpertMlp) and self.meshes.experts is not None:
                expert_parallel.split(mlp, self.meshes.experts)
                expert_parallel.balanced(
                    mlp,
                    context=self.context.group,
                    tensor=mesh.get_group() if sequence_parallel else None,
                    scale=1 / self.layout.micro_batches,
                )

    def _apart(self, stage: nn.Module) -> list[Unit]:
        assert isinstance(stage, Stage)
        return _apart(stage)

    def _parallel(
        self,
        stage: nn.Module,
        away: StateOffload,
        alike: Replicas,
        later: Deferred | None,
        copies: int,
    ) -> DataParallel:
        rules, meshes = policy(self.layout.precision_name), self.meshes
        if not self._zero:
            if rules.master:
                stage.to(rules.parameter)
                if isinstance(stage, Stage):
                    stage.tie()
            assert alike.weights is not None
            return Buffered(
                stage,
                alike.weights,
                experts=alike.experts,
                micro_batches=self.layout.micro_batches // copies,
                mean_over=meshes.weights["dp"].size(),
                reduction=reduction_of(self.setup.gradients, alike.weights),
            )
        how = Sharding(
            zero=self._zero,
            policy=rules,
            away=away,
            device=self.setup.device,
            zero_plus=self._zero_plus,
        )
        mesh, apart, units = meshes.shards, meshes.expert_shards, self._apart(stage)
        if alike.weights is not None:
            replicated = mesh.size() // one_axis(mesh).size()
            how = replace(how, alike=alike, mean_over=replicated)
            mesh, apart = one_axis(mesh), None if apart is None else one_axis(apart)
        if later is not None and how.zero >= 2:
            return AfterEachW(stage, units, mesh, how, apart, later=later)
        sharded = Sharded if later is None else AfterW
        return sharded(stage, units, mesh, how, apart)


def _units(stage: Stage) -> Iterator[tuple[str, nn.Module]]:
    """What is filled and sharded at a time, with its name in the stage."""
    if stage.embedding is not None:
        yield "embedding.", stage.embedding
    for name, layer in stage.layers.items():
        yield f"layers.{name}.", layer
    for name in ("final_norm", "head"):
        unit = getattr(stage, name)
        if unit is not None:
            yield f"{name}.", unit


def _apart(stage: Stage) -> list[Unit]:
    """What is gathered by itself, in model order; the final norm goes with the head.

    Both go with the stage where the table is the head too: one parameter has one group.
    """
    layers: list[Unit] = [
        unit for layer in stage.layers.values() for unit in _of_layer(layer)
    ]
    if stage.spec.tied_embeddings and stage.embedding and stage.head:
        return layers
    last = [one for one in (stage.final_norm, stage.head) if one is not None]
    units = (stage.embedding, *layers, last)
    return [unit for unit in units if unit]


def _of_layer(layer: nn.Module) -> Iterator[nn.Module]:
    """A layer, after its experts: their shards are over ranks of their own."""
    if isinstance(layer, Layer) and isinstance(layer.mlp, ExpertMlp):
        yield layer.mlp.experts
    yield layer
