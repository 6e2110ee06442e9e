"""The order of composition, on one screen: from a layout to the modules of one rank.

    plain modules → first values → context parallel → tensor parallel
                  → expert parallel → products in 8 bits → split backward
                  → compiled → recompute → precision → replicas

Parameters are made on the device, from the meta device, by the stage that holds them;
those whose shards will be on the host wait there, a unit at a time on the device.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh

from costmodel.layout import Layout
from costmodel.layout import Stage as StagePlan
from costmodel.schedule import schedule_called
from profiles.models import Job
from runtime.models import (
    ExpertMlp,
    Later,
    Layer,
    Stage,
    decoder_of,
    initialise,
    policy,
    put_off,
)
from runtime.offload import StatesAway, level
from runtime.parallel import (
    AfterEachW,
    AfterW,
    Buffered,
    DataParallel,
    Meshes,
    Replicas,
    Sharded,
    Sharding,
    SummedShards,
    Unit,
    expert_parallel,
    multiply_in_eight_bits,
    one_axis,
    replicas,
    split_layer_as,
    tensor_parallel,
)
from runtime.parallel.context_parallel import Context
from runtime.parallel.context_parallel import apply as context_parallel
from runtime.remat import apply as retention
from runtime.train.compile import compile_layer


@dataclass(slots=True)
class HeldStage:
    """A virtual stage on this rank: its modules, and their data parallelism.

    It is the copy number *copy* of *copies*; *later* is there where backward is split.
    """

    index: int
    stage: Stage
    parallel: DataParallel
    sequence_parallel: bool
    replicas: Replicas
    copy: int
    copies: int
    later: Later | None
    away: StatesAway

    def named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        return self.stage.named_parameters()


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """How a rank makes its modules: their first values are of *seed*, on *device*.

    *compiled*: torch.compile of each layer; what is saved on a drive is in files of
    *offload_dir* (None: of the folder of temporary files).
    """

    seed: int
    device: torch.device
    compiled: bool = False
    offload_dir: Path | None = None


def held_stages(
    job: Job,
    layout: Layout,
    meshes: Meshes,
    context: Context,
    setup: Setup,
) -> list[HeldStage]:
    """The virtual stages that this rank holds, ready to train, in model order."""
    rank = meshes.weights["pp"].get_local_rank()
    zero = _level(layout.stages[0], layout, meshes)
    groups = replicas(layout, meshes, zero=zero)
    return [
        _held(index, job, layout, meshes, context, groups[index], setup)
        for index, plan in enumerate(layout.stages)
        if rank in plan.held_by
    ]


def _held(
    index: int,
    job: Job,
    layout: Layout,
    meshes: Meshes,
    context: Context,
    alike: Replicas,
    setup: Setup,
) -> HeldStage:
    plan, device = layout.stages[index], setup.device
    spec, rules, mesh = decoder_of(job), policy(layout.precision_name), meshes.weights
    split = plan.plans[0].sharding == "megatron-sp" and plan.mesh.tp > 1
    zero = _level(plan, layout, meshes)
    away = StatesAway.of(layout.offload, zero)
    with torch.device("meta"):
        stage = Stage(spec, plan.layers)
    for prefix, unit in _units(stage):
        initialise(
            unit, prefix=prefix, layers=spec.layers, seed=setup.seed, device=device
        )
        if away.shards:
            unit.to("cpu")
    stage.tie()
    context_parallel.split(stage, context)
    told = {
        name: one.modules for name, one in zip(plan.layers, plan.plans, strict=True)
    }
    explicit = {name: modules for name, modules in told.items() if modules}
    tensor_parallel.split(stage, mesh["tp"], sequence_parallel=split, apart=explicit)
    for name, modules in explicit.items():
        block = job.graph.layer_blocks[name]
        split_layer_as(stage.layers[name], block, modules, mesh["tp"])  # type: ignore[arg-type]
    _spread_experts(stage, meshes, context, layout, sequence_parallel=split)
    for layer in stage.layers.values() if rules.eight_bits else ():
        multiply_in_eight_bits(layer)
    later = put_off(stage) if schedule_called(layout.schedule).splits else None
    for layer in stage.layers.values() if setup.compiled else ():
        compile_layer(layer)
    numbered = zip(plan.layers, plan.plans, strict=True)
    treated = [one.retention for name, one in numbered if name.isdigit()]
    dropout = spec.most_dropped > 0
    folder = setup.offload_dir
    retention.apply(stage, treated, dropout=dropout, device=device, folder=folder)
    copies, copy = len(plan.held_by), plan.held_by.index(mesh["pp"].get_local_rank())
    sharding = Sharding(zero=zero, policy=rules, away=away, device=device)
    parallel = _data_parallel(stage, sharding, meshes, alike, later, layout, copies)
    return HeldStage(index, stage, parallel, split, alike, copy, copies, later, away)


def _level(plan: StagePlan, layout: Layout, meshes: Meshes) -> int:
    ranks = meshes.weights["dp"].size()
    return level(plan.plans[0].zero, layout.offload, ranks=ranks)


def _spread_experts(
    stage: Stage,
    meshes: Meshes,
    context: Context,
    layout: Layout,
    *,
    sequence_parallel: bool,
) -> None:
    """Each layer's experts over their ranks, balanced for whole sequences."""
    for mlp in stage.modules():
        if isinstance(mlp, ExpertMlp) and meshes.experts is not None:
            expert_parallel.split(mlp, meshes.experts)
            expert_parallel.balanced(
                mlp,
                context=context.group,
                tensor=meshes.weights["tp"].get_group() if sequence_parallel else None,
                scale=1 / layout.micro_batches,
            )


def _data_parallel(
    stage: Stage,
    sharding: Sharding,
    meshes: Meshes,
    alike: Replicas,
    later: Later | None,
    layout: Layout,
    copies: int,
) -> DataParallel:
    rules = sharding.policy
    if sharding.zero:
        mesh, apart = meshes.shards, meshes.expert_shards
        if alike.weights is None:
            return _sharded(stage, sharding, mesh, apart, later)
        experts = None if apart is None else one_axis(apart)
        parallel = _sharded(stage, sharding, one_axis(mesh), experts, later)
        replicated = mesh.size() // one_axis(mesh).size()
        return SummedShards(parallel, alike, mean_over=replicated)
    if rules.master:
        stage.to(rules.parameter)
        stage.tie()
    assert alike.weights is not None
    return Buffered(
        stage,
        alike.weights,
        experts=alike.experts,
        micro_batches=layout.micro_batches // copies,
        mean_over=meshes.weights["dp"].size(),
    )


def _sharded(
    stage: Stage,
    sharding: Sharding,
    mesh: DeviceMesh,
    apart: DeviceMesh | None,
    later: Later | None,
) -> Sharded:
    units = _apart(stage)
    if later is not None and sharding.zero >= 2:
        return AfterEachW(stage, units, mesh, sharding, apart, later=later)
    sharded = Sharded if later is None else AfterW
    return sharded(stage, units, mesh, sharding, apart)


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
