"""`Combination`: the mechanisms that a layout uses, whatever it is read from.

The dozen numbers of a `Uniform` and the `Layout` that they spell out say the same
(a law); `costmodel.facts` puts it in the words of the support table.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from costmodel.layout import Layout, Mesh
from costmodel.offload import STATES, Offload
from costmodel.retention import (
    CORE,
    EVERYTHING,
    Action,
    Retention,
    body_presets,
)
from costmodel.schedule import SCHEDULES, copies_held
from costmodel.uniform import Uniform, split_layers
from profiles.errors import InvalidSpec
from profiles.job import Job

SEGMENTS = "segments"
NOWHERE = frozenset(("none",))
AWAY = {"cpu": "offloaded", "nvme": "on disk"}  # by tier
IN_PART = "in part"
BY_NAME = "by name"
OF_ROUTING = "of routing"
ROUTED = frozenset(("top_k_out", "dispatch_out"))  # who goes where, and what came
# Of a layer, but for parts and bits that nobody chooses unasked.
TREATMENTS = (
    "none",
    "selective",
    BY_NAME,
    OF_ROUTING,
    "full",
    SEGMENTS,
    *AWAY.values(),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Combination:
    """Degrees, ZeRO, schedule, retention and precision; sets where layers differ."""

    tp: int
    pp: int
    dp: int
    cp: int
    cp_kind: str
    ep: int
    etp: int
    zero: frozenset[int]
    zero_group: int
    sequence_parallel: frozenset[bool]
    schedule: str
    retentions: frozenset[str]  # of numbered layers, as `treatment` says
    of_ends: frozenset[str]  # of embedding, final norm and head
    precision: str
    gradient_format: str
    flash_attention: bool
    states: str  # on the device, or which of them are away
    states_on: str  # what keeps those that are away: device (none is), host, drive
    zero_plus: str  # which of ZeRO++, or none
    by_modules: bool  # whether layers have explicit shardings
    stages: str  # alike, unlike, held elsewhere, gaps

    @classmethod
    def of_choice(cls, choice: Uniform, job: Job) -> Combination:
        """What *choice* means for *job*'s model; raises as `retention.preset`."""
        return cls(
            tp=choice.tp,
            pp=choice.pp,
            dp=choice.dp,
            cp=choice.cp,
            cp_kind=choice.cp_kind,
            ep=choice.ep,
            etp=choice.etp,
            zero=frozenset((choice.zero,)),
            zero_group=choice.zero_group,
            sequence_parallel=frozenset((choice.sequence_parallel,)),
            schedule=choice.schedule,
            retentions=frozenset((_chosen(choice, job),)),
            of_ends=NOWHERE,
            precision=choice.precision,
            gradient_format=choice.gradient_format,
            flash_attention=choice.flash_attention,
            states=_states(choice.offload),
            states_on=_kept_on(choice.offload),
            zero_plus=str(choice.zero_plus),
            by_modules=False,
            stages="alike",
        )

    @classmethod
    def of_layout(cls, layout: Layout) -> Combination:
        """What a finished layout uses; of unlike meshes the largest degrees."""
        meshes = [stage.mesh for stage in layout.stages]
        plans = [
            (name.isdigit(), plan)
            for stage in layout.stages
            for name, plan in zip(stage.layers, stage.plans, strict=True)
        ]
        return cls(
            tp=max(mesh.tp for mesh in meshes),
            pp=layout.pp,
            dp=max(mesh.dp for mesh in meshes),
            cp=max(mesh.cp for mesh in meshes),
            cp_kind=layout.cp_kind,
            ep=max(mesh.ep for mesh in meshes),
            etp=max(mesh.etp for mesh in meshes),
            zero=frozenset(plan.zero for _, plan in plans),
            zero_group=min(mesh.dp_shard for mesh in meshes),
            sequence_parallel=frozenset(
                plan.sharding == "megatron-sp" for _, plan in plans
            ),
            schedule=layout.schedule,
            retentions=_treatments(plan.retention for body, plan in plans if body),
            of_ends=_treatments(plan.retention for body, plan in plans if not body),
            precision=layout.precision_name,
            gradient_format=layout.gradient_format,
            flash_attention=layout.flash_attention,
            states=_states(layout.offload),
            states_on=_kept_on(layout.offload),
            zero_plus=str(layout.zero_plus),
            by_modules=any(plan.modules for _, plan in plans),
            stages=_stages(layout),
        )


def treatment(retention: Retention) -> str:
    """none, selective, full, segments, by name (of routing: of who goes to which
    expert), in part, offloaded, on disk or compressed: of several the last that fits,
    but that a part comes first, and routing after it.

    >>> from costmodel.retention import recompute
    >>> treatment(recompute("attention_core")), treatment(recompute("norm_output"))
    ('selective', 'by name')
    """
    treated = retention.tensors.values()
    if any(one.ratio < 1 for one in treated if one.action is Action.RECOMPUTE):
        return IN_PART
    if retention.recomputed & ROUTED:
        return OF_ROUTING
    if retention.tiers:
        return max(AWAY[tier] for tier in retention.tiers)
    if retention.compresses:
        return "compressed"
    again = retention.recomputed
    if not again:
        return "none"
    if EVERYTHING in again and again - {CORE, EVERYTHING}:
        return SEGMENTS
    if again - {CORE, EVERYTHING}:
        return BY_NAME
    return "full" if EVERYTHING in again else "selective"


def _chosen(choice: Uniform, job: Job) -> str:
    name = choice.recompute
    if choice.offload.activations:
        return AWAY[choice.offload.tier]
    if choice.recompute_layers == 0:
        return "none"
    if name == "auto":  # what it comes to, its layout says
        return "full"
    if name in ("none", "selective", "full"):
        return name
    if name == "sqrt":
        return SEGMENTS if _redone(choice, job) > 1 else "full"
    found = {treatment(again) for again in body_presets(name, job.graph).values()}
    return min(
        found, key=(IN_PART, OF_ROUTING, BY_NAME, "full", "selective", "none").index
    )


def _redone(choice: Uniform, job: Job) -> int:
    """The most layers of a stage that are made again."""
    graph = job.graph
    stages = choice.pp * choice.virtual_stages
    even = split_layers(graph.body, stages, graph.tail)
    most = max(choice.layers_per_stage or even)
    some = choice.recompute_layers
    return most if some is None else min(some, most)


def _states(offload: Offload) -> str:
    if not offload.states:
        return "on the device"
    return " and ".join(name for name in STATES if getattr(offload, name))


def _kept_on(offload: Offload) -> str:
    if not offload.states:
        return "device"
    return "drive" if offload.tier == "nvme" else "host"


def _treatments(retentions: Iterable[Retention]) -> frozenset[str]:
    distinct = {id(retention): retention for retention in retentions}
    return frozenset(treatment(retention) for retention in distinct.values())


def _stages(layout: Layout) -> str:
    """Whether one mesh is repeated as the schedule places it, on ranks from 0."""
    stages = layout.stages
    if len({_shape(stage.mesh) for stage in stages}) > 1:
        return "unlike"
    held = [(stage.held_by, stage.mesh.ranks) for stage in stages]
    alone = len(set(held)) == layout.pp
    if layout.schedule in SCHEDULES and not (alone and _as_scheduled(layout)):
        return "held elsewhere"
    highest = max(last for _, ranks in held for _, last in ranks.spans)
    return "alike" if highest + 1 == layout.gpus else "gaps"


def _as_scheduled(layout: Layout) -> bool:
    """Whether the pipeline ranks that the schedule says hold the stages."""
    try:
        copies = copies_held(layout.schedule, layout.pp, layout.virtual_stages)
    except InvalidSpec:
        return False
    return [stage.held_by for stage in layout.stages] == list(zip(*copies, strict=True))


def _shape(mesh: Mesh) -> tuple[int, ...]:
    return (mesh.tp, mesh.cp, mesh.dp_shard, mesh.dp_replicate, mesh.ep, mesh.etp)
