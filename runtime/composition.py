"""The order of composition, on one screen: from a layout to the modules of one rank.

    plain modules → first values → context parallel → tensor parallel → recompute
                  → precision → replicas → split backward

Parameters are made on the device, from the meta device, by the stage that holds them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh

from costmodel.layout import Layout
from costmodel.layout import Stage as StagePlan
from costmodel.schedule import schedule_called
from profiles.job import Job
from runtime import retention, tensor_parallel
from runtime.collectives import Group
from runtime.context_parallel import split as context_parallel
from runtime.context_parallel.split import Context
from runtime.data_parallel import AfterW, Buffered, DataParallel, Sharded
from runtime.initialise import initialise
from runtime.modules.decoder import Stage, decoder_of
from runtime.precision import Policy, policy
from runtime.replicas import replica_groups
from runtime.split_backward import Later, put_off


@dataclass(slots=True)
class HeldStage:
    """A virtual stage on this rank: its modules, and their data parallelism.

    It is the copy number *copy* of *copies*; *later* is there where backward is split.
    """

    index: int
    stage: Stage
    parallel: DataParallel
    sequence_parallel: bool
    replicas: Group
    copy: int
    copies: int
    later: Later | None

    def named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        return self.stage.named_parameters()


def held_stages(
    job: Job,
    layout: Layout,
    mesh: DeviceMesh,
    context: Context,
    *,
    seed: int,
    device: torch.device,
) -> list[HeldStage]:
    """The virtual stages that this rank holds, ready to train, in model order."""
    rank = mesh["pp"].get_local_rank()
    groups = replica_groups(layout, mesh)
    return [
        _held(
            index,
            plan,
            job,
            layout,
            mesh,
            context,
            groups[index],
            seed=seed,
            device=device,
        )
        for index, plan in enumerate(layout.stages)
        if rank in plan.held_by
    ]


def _held(
    index: int,
    plan: StagePlan,
    job: Job,
    layout: Layout,
    mesh: DeviceMesh,
    context: Context,
    replicas: Group,
    *,
    seed: int,
    device: torch.device,
) -> HeldStage:
    spec, rules = decoder_of(job), policy(layout.precision_name)
    split = plan.plans[0].sharding == "megatron-sp" and plan.mesh.tp > 1
    zero = plan.plans[0].zero if mesh["dp"].size() > 1 else 0
    with torch.device("meta"):
        stage = Stage(spec, plan.layers)
    for prefix, unit in _units(stage):
        initialise(unit, prefix=prefix, layers=spec.layers, seed=seed, device=device)
    stage.tie()
    context_parallel.split(stage, context)
    tensor_parallel.split(stage, mesh["tp"], sequence_parallel=split)
    for name, layer_plan in zip(plan.layers, plan.plans, strict=True):
        if name.isdigit():
            layer = stage.layers[name]
            retention.apply(layer, layer_plan.retention, dropout=spec.dropout > 0)
    copies, copy = len(plan.held_by), plan.held_by.index(mesh["pp"].get_local_rank())
    parallel = _data_parallel(stage, zero, rules, mesh, replicas, layout, copies)
    later = put_off(stage) if schedule_called(layout.schedule).splits else None
    return HeldStage(index, stage, parallel, split, replicas, copy, copies, later)


def _data_parallel(
    stage: Stage,
    zero: int,
    rules: Policy,
    mesh: DeviceMesh,
    replicas: Group,
    layout: Layout,
    copies: int,
) -> DataParallel:
    if zero:
        split = schedule_called(layout.schedule).splits
        sharded = AfterW if split else Sharded
        return sharded(stage, _apart(stage), mesh["dp"], zero, rules)
    if rules.master:
        stage.to(rules.parameter)
        stage.tie()
    return Buffered(
        stage,
        replicas,
        micro_batches=layout.micro_batches // copies,
        mean_over=mesh["dp"].size(),
    )


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


def _apart(stage: Stage) -> list[nn.Module]:
    """What is gathered by itself, in model order; the final norm goes with the stage.

    A table that is the head too goes there as well: one parameter has one group.
    """
    layers = list(stage.layers.values())
    if stage.spec.tied_embeddings and stage.embedding and stage.head:
        return layers
    units = (stage.embedding, *layers, stage.head)
    return [unit for unit in units if unit is not None]
