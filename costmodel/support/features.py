"""`Combination`: the mechanisms that a layout uses, whatever it is read from.

The dozen numbers of a `Uniform` and the `Layout` that they spell out say the same
(a law); `costmodel.support.features` puts it in the words of the support table.

Facts of a combination and a job: what the rows of the support table ask about.

Each has a value that rows name (`>1`, `uneven`) and one that messages show (`4`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from costmodel.layout import (
    CORE,
    EVERYTHING,
    STATES,
    Action,
    Layout,
    Mesh,
    Offload,
    Retention,
    Uniform,
    body_presets,
    split_layers,
)
from costmodel.schedule import SCHEDULES, copies_held, flushes
from profiles.errors import InvalidSpec
from profiles.hardware import precision
from profiles.models import DecoderSpec, Job, ModuleSpec

SEGMENTS = "segments"
# Fields of a combination that are a `Uniform`'s.
_OF_CHOICE = (
    *("tp", "pp", "dp", "cp", "cp_kind", "ep", "etp", "zero_group", "schedule"),
    *("precision", "gradient_format", "flash_attention"),
)
NOWHERE = frozenset(("none",))
AWAY = {"cpu": "offloaded", "nvme": "on disk"}  # by tier
COMPRESSED, COMPRESSED_INPUT = "compressed", "compressed input"
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
    def of(cls, asked: Uniform | Layout | Combination, job: Job) -> Combination:
        """That of whatever was asked about *job*."""
        if isinstance(asked, Combination):
            return asked
        if isinstance(asked, Layout):
            return cls.of_layout(asked)
        return cls.of_choice(asked, job)

    @classmethod
    def of_choice(cls, choice: Uniform, job: Job) -> Combination:
        """What *choice* means for *job*'s model; raises as `retention.preset`."""
        return cls(
            **{name: getattr(choice, name) for name in _OF_CHOICE},
            zero=frozenset((choice.zero,)),
            sequence_parallel=frozenset((choice.sequence_parallel,)),
            retentions=frozenset((_chosen(choice, job),)),
            of_ends=NOWHERE,
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
            **{
                name: max(getattr(mesh, name) for mesh in meshes)
                for name in ("tp", "dp", "cp", "ep", "etp")
            },
            pp=layout.pp,
            cp_kind=layout.cp_kind,
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
    expert), in part, offloaded, on disk or compressed (what a layer keeps, or the input
    that is all it keeps): of several the last that fits,
    but that a part comes first, and routing after it.

    >>> from costmodel.layout.retention import recompute
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
        return COMPRESSED_INPUT if EVERYTHING in retention.recomputed else COMPRESSED
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
    if choice.offload.of_activations is not None:
        return COMPRESSED_INPUT if name in ("full", "sqrt") else COMPRESSED
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


ACTIVATIONS = ("gelu", "relu", "silu")  # that the runtime's MLP has
DEGREES = ("tp", "pp", "dp", "cp")
AGAIN = frozenset(("selective", "full", SEGMENTS, BY_NAME, OF_ROUTING, IN_PART))
MOVED = frozenset((*AWAY.values(), COMPRESSED, COMPRESSED_INPUT))


@dataclass(frozen=True, slots=True)
class Fact:
    """*value* as rows name it, *shown* as messages do."""

    value: str
    shown: str


Facts = Mapping[str, Fact]
Values = Mapping[str, tuple[str, ...]]  # fact → the values that it may have


def holds(when: Values, found: Facts) -> bool:
    """Whether every fact that *when* names has one of its values."""
    return all(found[name].value in values for name, values in when.items())


def facts(used: Combination, job: Job) -> Facts:
    """Every fact of the plan and of *job*, by name."""
    return {**_layout(used, job), **_model(job, used)}


def _layout(used: Combination, job: Job) -> dict[str, Fact]:
    zero = _common(used.zero) if used.dp * used.cp > 1 else "0"
    whole = zero == "0" or used.zero_group == used.dp
    split = _common(_yes(one) for one in used.sequence_parallel)
    several = [name for name in DEGREES if getattr(used, name) > 1]
    return {
        **{name: _degree(getattr(used, name)) for name in (*DEGREES, "ep", "etp")},
        "together": _plain("×".join(several) or "nothing"),
        "replicas": _degree(used.dp * used.cp),
        "zero": _plain(zero),
        "zero group": Fact("all" if whole else "part", str(used.zero_group)),
        "sequence parallel": _plain(split if used.tp > 1 else "no"),
        "operators": _plain("by modules" if used.by_modules else "by a preset"),
        "seq_len": _divided(job.seq_len, used.tp * used.cp),
        "cp kind": _plain(used.cp_kind if used.cp > 1 else "none"),
        "chunks": _divided(job.seq_len, _chunks(used)),
        "schedule": _plain(used.schedule if used.pp > 1 else "none"),
        "flush": _plain(_yes(used.pp == 1 or flushes(used.schedule))),
        "stages": _plain(used.stages),
        "recompute": _plain(_recompute(used)),
        "saved tensors": _plain(_elsewhere(used)),
        "states": _plain(used.states),
        "states on": _plain(used.states_on),
        "ZeRO++": Fact("none" if used.zero_plus == "none" else "some", used.zero_plus),
        "attention kernel": _plain("fused" if used.flash_attention else "unfused"),
        "precision": _plain(used.precision),
        "gradients": _plain(_gradients(used)),
        "optimizer": _plain(job.optimizer),
    }


def _model(job: Job, used: Combination) -> dict[str, Fact]:
    spec, tp = job.spec, used.tp
    found = {"family": _plain(spec.family)}
    if isinstance(spec, ModuleSpec):
        widths = job.graph.splits or ()
        return {
            **found,
            "own code": _plain(_yes(spec.own_code)),
            "splits": Fact("even" if tp in (1, *widths) else "uneven", str(tp)),
        }
    if not isinstance(spec, DecoderSpec):
        return found
    flags = {
        "experts": spec.moe is not None,
        "latent experts": spec.moe is not None and spec.moe.latent > 0,
        "recurrence": spec.recurrence is not None,
        "split layers": spec.splits_layers,
        "attention gate": spec.attention_gate,
        "attention sinks": spec.attention_sinks,
        "latent attention": spec.mla is not None,
        "multi-token heads": spec.multi_token_heads > 0,
        "parallel block": spec.parallel_block,
        "query-key norm": spec.qk_norm,
        "grouped queries": spec.kv_heads < spec.heads,
        "gated": spec.gated_mlp,
        "tied embeddings": spec.tied_embeddings,
    }
    sizes = ("heads", "kv_heads", "ffn_hidden", "vocab")
    short = spec.reach is not None and spec.reach < job.seq_len
    dropout, beyond = max(spec.dropout, spec.embedding_dropout), spec.numerics
    known = spec.activation in ACTIVATIONS
    return {
        **found,
        **{name: _plain(_yes(flag)) for name, flag in flags.items()},
        **{name: _divided(getattr(spec, name), tp) for name in sizes},
        **_experts(spec, used),
        "heads of a rank": _plain(_spread(spec, used)),
        "positions": _plain(spec.position),
        "window": Fact("short" if short else "none", str(spec.reach)),
        "norm": _plain(spec.norm),
        "activation": Fact(spec.activation if known else "other", spec.activation),
        "dropout": Fact(">0" if dropout else "0", f"{dropout:g}"),
        "attention dropout": Fact(
            ">0" if beyond.attention_dropout else "0", f"{beyond.attention_dropout:g}"
        ),
        "not computed": Fact(
            "some" if spec.not_computed else "none", ", ".join(spec.not_computed)
        ),
    }


def _experts(spec: DecoderSpec, used: Combination) -> dict[str, Fact]:
    moe = spec.moe
    if moe is None:
        return {
            "router groups": Fact("1", "1"),
            "capacity": _plain("any"),
            "experts of a rank": _plain("even"),
            "width of an expert": _plain("even"),
        }
    capacity = moe.capacity_factor
    return {
        "router groups": _degree(moe.router_groups),
        "capacity": _plain("any") if capacity is None else Fact("fixed", str(capacity)),
        "experts of a rank": _divided(moe.experts, used.ep),
        "width of an expert": _divided(moe.expert_ffn_hidden, used.etp),
    }


def _chunks(used: Combination) -> int:
    """Into how many chunks context parallelism cuts the sequence: a causal mask is
    shared out by two a rank, or by heads, or not at all."""
    return used.cp if used.cp_kind in ("ulysses", "rsa") else 2 * used.cp


def _spread(spec: DecoderSpec, used: Combination) -> str:
    """Whether context parallelism by heads gives each rank as many: of queries, and of
    keys as many or a copy of one."""
    heads, kv_heads = (-(-one // used.tp) for one in (spec.heads, spec.kv_heads))
    fair = kv_heads % used.cp == 0 or used.cp % kv_heads == 0
    return "even" if heads % used.cp == 0 and fair else "uneven"


def _recompute(used: Combination) -> str:
    again = used.retentions & AGAIN
    if used.of_ends & AGAIN:
        return "of ends"
    for word in (IN_PART, SEGMENTS, OF_ROUTING, BY_NAME):
        if word in again:
            return word
    return "selective and full" if len(again) > 1 else min(again, default="none")


def _elsewhere(used: Combination) -> str:
    if used.of_ends & MOVED:
        return "of ends"
    return max(used.retentions & MOVED, default="on the device")


def _gradients(used: Combination) -> str:
    """The formats that are really kept: some precisions have but one."""
    found = precision(used.precision, gradient=used.gradient_format)
    return f"{found.reduced_copy or ''}+{found.gradient}".lstrip("+")


def _common(values: Iterable[object]) -> str:
    distinct = {str(value) for value in values}
    return distinct.pop() if len(distinct) == 1 else "mixed"


def _yes(flag: bool) -> str:
    return "yes" if flag else "no"


def _plain(value: str) -> Fact:
    return Fact(value, value)


def _degree(size: int) -> Fact:
    return Fact("1" if size == 1 else ">1", str(size))


def _divided(size: int, parts: int) -> Fact:
    return Fact("uneven" if size % parts else "even", str(size))
