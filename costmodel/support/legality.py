"""May this model run so on this cluster? Every violation, not just the first.

Each rule is a sentence: what was given, what is allowed.

May a layout's explicit shardings run so? Every violation, not just the first.

Each is of an operator of its layer, a split of one of its loops, over the tp axis; what
one hands on is what the next is given, the layer's ends are its preset's, and all that
is split divides.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from costmodel.layout import (
    PARTIAL,
    WHOLE,
    LayerPlan,
    Layout,
    ModuleSharding,
    Offload,
    Placed,
    Stage,
    Uniform,
    interleaves,
    offload_problems,
    split,
    zero_plus_problems,
)
from costmodel.machine import shares_cores
from costmodel.operators import dimension, loops_of
from costmodel.schedule import SCHEDULES, require_schedule
from costmodel.stages import degrees_of
from costmodel.support.support_table import is_local
from profiles.errors import Contradiction, InvalidSpec, MeshwrightError
from profiles.hardware import Cluster, precision
from profiles.models import HEADS, Block, Job, Kind, ModelGraph, Operator

AXES = ("tp",)
ENDS_APART = 2  # stages without a layer: embedding, and final norm with head
EXPERTS = (Kind.GROUPED_MATMUL, Kind.DISPATCH, Kind.COMBINE)


def module_violations(layout: Layout, job: Job) -> Iterator[str]:
    """Why the layers' modules cannot be; nothing if they can."""
    if not any(plan.modules for plan in layout.plans):
        return
    blocks = job.graph.layer_blocks
    seen = set()
    for stage in layout.stages:
        for name, plan in zip(stage.layers, stage.plans, strict=True):
            key = (id(plan), stage.mesh.tp, stage.mesh.cp, blocks[name].name)
            if plan.modules and key not in seen:
                seen.add(key)
                yield from _of_layer(layout, job, stage, plan, blocks[name])


def _of_layer(
    layout: Layout, job: Job, stage: Stage, plan: LayerPlan, block: Block
) -> Iterator[str]:
    mesh = stage.mesh
    if mesh.tp == 1 or mesh.cp > 1:
        yield (
            f"shardings by module split over tp, in sequences that are whole: "
            f"{block.name!r} has tp {mesh.tp} and cp {mesh.cp}; choose tp above 1 and "
            "cp 1, or leave its modules out"
        )
        return
    wanted = [f"{block.name}.{one.name}" for one in block.operators]
    if [one.module for one in plan.modules] != wanted or block.entry is None:
        yield f"the modules of {block.name!r} are to be {', '.join(wanted)}, in order"
        return
    if any(one.kind in EXPERTS for one in block.operators):
        yield f"{block.name!r} has experts, which are spread by ep and etp, not modules"
        return
    between = ("sequence" if plan.sharding == "megatron-sp" else WHOLE,)
    handed: dict[str, Placed] = {block.entry.name: between}
    sizes = {
        **block.extents,
        "batch": layout.micro_batch(stage),
        "sequence": job.seq_len,
    }
    for operator, one in zip(block.operators, plan.modules, strict=True):
        yield from _of_module(operator, one, handed)
        yield from _uneven(one, block, sizes, mesh.tp)
        handed[operator.output.name] = one.output.handed
    if plan.modules[-1].output.handed != between:
        yield (
            f"{wanted[-1]} hands on {plan.modules[-1].output.handed[0]!r}, the layer's "
            f"preset {plan.sharding} {between[0]!r}"
        )


def _of_module(
    operator: Operator, one: ModuleSharding, handed: dict[str, Placed]
) -> Iterator[str]:
    if one.axes != AXES:
        yield f"{one.module} is split over {' × '.join(one.axes)}; tp is the only axis"
        return
    try:
        loops_of(one, operator)
    except InvalidSpec as error:
        yield str(error)
        return
    for given in one.inputs:
        if given.given != handed[given.tensor]:
            yield (
                f"{one.module} is given {given.tensor} as {given.given[0]!r}, which is "
                f"handed on as {handed[given.tensor][0]!r}"
            )
    made, on = one.output.made[0], one.output.handed[0]
    if on == PARTIAL or made not in (on, PARTIAL):
        yield (
            f"{one.module} makes {made!r} and hands on {on!r}; a sum is handed on "
            "whole or split, anything else as it was made"
        )


def _uneven(
    one: ModuleSharding, block: Block, sizes: dict[str, int], tp: int
) -> Iterator[str]:
    placed = [*one.output.made, *one.output.handed]
    placed += [word for given in one.inputs for word in (*given.given, *given.wanted)]
    for word in sorted({word for word in placed if split(word)}):
        parts = [sizes[name] for name in word.split("+")]
        if dimension(word) == "heads":
            parts = [block.heads, block.kv_heads]
        if any(size % tp for size in parts):
            yield f"{one.module}: tp {tp} does not divide {word} ({min(parts)})"


MOST_PASSES = 4_000_000  # forwards and backwards of a step; seconds to simulate
NO_FLASH = ("volta", "turing", "pascal")  # FlashAttention needs sm80 (its README)


def violations(choice: Uniform, job: Job, cluster: Cluster) -> Iterator[str]:
    """Why *choice* cannot run *job* on *cluster*; nothing if it can."""
    yield from _shape(choice, job)
    yield from _pipeline(choice, job)
    yield from _data(choice, job)
    on_host = shares_cores(cluster.islands[0].device)
    yield from offload_problems(choice.offload, zero=choice.zero, on_host=on_host)
    yield from _stale(choice.schedule, choice.zero, choice.offload)
    yield from zero_plus_problems(
        choice.zero_plus,
        zero=choice.zero,
        dp=choice.dp,
        cp=choice.cp,
        zero_group=choice.zero_group,
        offload=choice.offload,
        experts=job.has_experts,
    )
    yield from machine_violations(choice, cluster)


def require_legal(choice: Uniform, job: Job, cluster: Cluster) -> None:
    """Raise Contradiction with all violations, one after another."""
    found = list(violations(choice, job, cluster))
    if found:
        raise Contradiction("; ".join(found))


def require_legal_layout(layout: Layout, job: Job, cluster: Cluster) -> None:
    """The same for a finished layout; its cuts are its own.

    Raises Contradiction with all violations.
    """
    found = list(dict.fromkeys(_of_stages(layout, job, cluster)))
    found += module_violations(layout, job)
    found += offload_problems(
        layout.offload,
        zero=min(plan.zero for one in layout.stages for plan in one.plans),
        on_host=shares_cores(cluster.islands[0].device),
    )
    most = max(plan.zero for one in layout.stages for plan in one.plans)
    found += _stale(layout.schedule, most, layout.offload)
    found += dict.fromkeys(_of_zero_plus(layout, job))
    if found:
        raise Contradiction("; ".join(found))


def _stale(schedule: str, zero: int, offload: Offload) -> Iterator[str]:
    """What a schedule without a flush does not go with."""
    known = SCHEDULES.get(schedule)
    if known is None or known.stale is None:
        return
    if zero > 1:
        yield (
            f"zero={zero} with {schedule}: a rank keeps whole weights of its own from "
            "update to update, and sums gradients once in one; choose zero 0 or 1"
        )
    if offload.states:
        yield (
            f"{schedule} with states that are offloaded: an update would wait for them "
            "while the passes go on; leave optimizer and parameters out of --offload"
        )


def _of_zero_plus(layout: Layout, job: Job) -> Iterator[str]:
    if not layout.zero_plus.anything:
        return
    for stage in layout.stages:
        yield from zero_plus_problems(
            layout.zero_plus,
            zero=min(plan.zero for plan in stage.plans),
            dp=stage.mesh.dp,
            cp=stage.mesh.cp,
            zero_group=stage.mesh.dp_shard,
            offload=layout.offload,
            experts=job.has_experts,
        )


def _of_stages(layout: Layout, job: Job, cluster: Cluster) -> Iterator[str]:
    """What is against the meshes of the stages, each kind looked at once."""
    yield from _size(layout.gpus, cluster)
    kinds = {
        (degrees_of(stage.mesh), sequence_split): stage
        for stage in layout.stages
        for sequence_split in {plan.sharding == "megatron-sp" for plan in stage.plans}
    }
    for (_, sequence_split), stage in kinds.items():
        choice = replace(
            Uniform.of_stage(layout, stage),
            sequence_parallel=sequence_split and stage.mesh.tp > 1,
        )
        yield from _cluster(choice, cluster)
        yield from _shape(choice, job)


def _shape(choice: Uniform, job: Job) -> Iterator[str]:
    tp, cp, graph = choice.tp, choice.cp, job.graph
    yield from width_violations(tp, graph)
    yield from _experts(choice, job)
    if cp > 1 and not graph.alike_in_rows:
        yield (
            f"cp={cp}: layers of {job.model} have other rows than a job has tokens, "
            "which context parallelism does not split; use cp 1"
        )
    pieces = cp * (tp if choice.sequence_parallel else 1)
    if job.seq_len % pieces:
        yield f"seq_len={job.seq_len} is not a multiple of cp × tp = {pieces}"
    if choice.cp > 1 and choice.cp_kind == "ring" and job.seq_len % (2 * cp):
        yield f"ring context parallelism needs seq_len a multiple of {2 * cp}"
    if cp > 1 and choice.cp_kind == "ulysses":
        yield from spread_violations(tp, cp, graph)
    if choice.cp > 1 and choice.cp_kind == "rsa" and choice.flash_attention:
        yield "rsa stores whole rows of scores: it needs --no-flash-attention"
    if choice.sequence_parallel and graph.splits is not None:
        yield (
            f"{job.model} is code that takes whole sequences; use "
            "--no-sequence-parallel"
        )
    if choice.sequence_parallel and tp == 1:
        yield "sequence parallelism splits over tp: it needs tp > 1"


def spread_violations(tp: int, cp: int, graph: ModelGraph) -> Iterator[str]:
    """What of the heads of a tp rank *cp* ranks cannot share out."""
    heads = {block.heads // tp for block in graph.kinds.values() if block.heads}
    for each in sorted(heads):
        if each % cp:
            yield f"ulysses needs cp={cp} to divide the {each} heads of a rank"
    for each in sorted({block.extents.get(HEADS, 0) for block in graph.kinds.values()}):
        if each // tp % cp:
            yield (
                f"ulysses needs cp={cp} to divide the {each // tp} heads of the "
                "recurrence on a rank"
            )


def width_violations(tp: int, graph: ModelGraph) -> Iterator[str]:
    """What of a model's heads and dense widths *tp* does not divide; no convolution is
    divided at all."""
    if graph.splits is not None and tp not in (1, *graph.splits):
        yield (
            f"tp={tp}: {graph.whole}; use tp 1"
            if graph.whole
            else (
                f"tp={tp}: {graph.name} runs with {', '.join(map(str, graph.splits))}"
            )
        )
        return
    if tp > 1 and graph.convolves:
        yield (
            f"tp={tp}: {graph.name} has convolutions, which tensor parallelism does "
            "not split here; use tp 1"
        )
        return
    yield from dict.fromkeys(
        found for block in graph.kinds.values() for found in _block_widths(tp, block)
    )


def _block_widths(tp: int, block: Block) -> Iterator[str]:
    kv_heads, ffn = block.kv_heads, block.extents.get("ffn", 0)
    if block.heads % tp:
        yield f"tp={tp} does not divide the {block.heads} heads"
    if kv_heads and kv_heads % tp and tp % kv_heads:
        yield f"tp={tp} and {kv_heads} key-value heads do not divide each other"
    if ffn % tp and any("ffn" in one.columns for one in block.operators):
        yield f"tp={tp} does not divide ffn_hidden={ffn}"
    if HEADS in block.extents:
        heads, groups = block.extents[HEADS], block.extents["mixer_groups"]
        if heads % tp:
            yield f"tp={tp} does not divide the {heads} heads of the recurrence"
        if groups % tp and tp % groups:
            yield f"tp={tp} and the recurrence's {groups} groups do not divide evenly"


def _experts(choice: Uniform, job: Job) -> Iterator[str]:
    tp, ep, etp, moe = choice.tp, choice.ep, choice.etp, job.moe
    if moe is None:
        if ep * etp > 1:
            yield (
                f"ep {ep} × etp {etp}: {job.model} has no experts to spread; leave ep "
                "and etp at 1"
            )
        return
    ranks = tp * choice.cp * choice.dp
    if moe.experts % ep:
        yield f"ep={ep} does not divide the {moe.experts} experts"
    if ranks % (ep * etp):
        yield (
            f"ep {ep} × etp {etp} = {ep * etp} does not divide the tp × cp × dp = "
            f"{ranks} ranks of a stage, over which experts are spread"
        )
    if moe.expert_ffn_hidden % etp:
        yield f"etp={etp} does not divide the experts' width {moe.expert_ffn_hidden}"
    if moe.shared_experts * moe.shared_ffn_hidden % tp:
        yield (
            f"tp={tp} does not divide the shared experts' width "
            f"{moe.shared_experts * moe.shared_ffn_hidden}"
        )
    if tp > 1 and not choice.sequence_parallel:
        yield (
            f"experts with tp={tp} need sequence parallelism, so that each rank sends "
            "its own tokens; leave --no-sequence-parallel out, or set tp to 1"
        )


def _pipeline(choice: Uniform, job: Job) -> Iterator[str]:
    body = job.graph.body
    stages = choice.pp * choice.virtual_stages
    woven = choice.virtual_stages > 1
    even = job.graph.even and choice.layers_per_stage is None  # else asked for, checked
    if stages > body + ENDS_APART:
        yield (
            f"pp × virtual stages = {stages} is more than the {body} layers, embedding "
            f"and head: at most {body + ENDS_APART}"
        )
    elif woven and even and not interleaves(body, stages):
        yield (
            f"interleaving splits the {body} layers (or {body + 2} with embedding and "
            f"head) into pp × virtual stages = {stages} equal parts, which does not "
            "divide"
        )
    if job.global_batch % (choice.micro_batch * choice.dp) == 0:
        try:
            require_schedule(
                choice.schedule,
                choice.pp,
                choice.virtual_stages,
                choice.micro_batches(job.global_batch),
            )
        except MeshwrightError as error:
            yield str(error)


def _data(choice: Uniform, job: Job) -> Iterator[str]:
    size = choice.micro_batch * choice.dp
    if job.global_batch % size:
        yield (
            f"global batch {job.global_batch} is not a multiple of micro-batch "
            f"{choice.micro_batch} × dp {choice.dp} = {size}"
        )
    if choice.dp % choice.zero_group:
        yield f"zero_group={choice.zero_group} does not divide dp={choice.dp}"


def fuses_attention(cluster: Cluster) -> bool:
    """Whether attention can do without stored scores: FlashAttention from Ampere on;
    on this machine PyTorch's own kernels, which every device has."""
    old = any(
        island.device.architecture.lower().startswith(NO_FLASH)
        for island in cluster.islands
    )
    return is_local(cluster) or not old


def machine_violations(choice: Uniform, cluster: Cluster) -> Iterator[str]:
    """What of *choice* the GPUs of *cluster* are too few for, or cannot compute."""
    yield from _size(choice.gpus, cluster)
    yield from _cluster(choice, cluster)


def _size(gpus: int, cluster: Cluster) -> Iterator[str]:
    if cluster.gpus is not None and gpus > cluster.gpus:
        yield f"{gpus} GPUs asked, {cluster.name} has {cluster.gpus}"


def _cluster(choice: Uniform, cluster: Cluster) -> Iterator[str]:
    wanted = precision(choice.precision).matmul
    flash = choice.flash_attention and not fuses_attention(cluster)
    for island in cluster.islands:
        device = island.device
        if wanted.value not in device.peak:
            yield (
                f"{device.name} does not multiply in {wanted.value}; it has "
                f"{', '.join(device.peak)}"
            )
        if flash and device.architecture.lower().startswith(NO_FLASH):
            yield (
                f"flash attention needs Ampere or newer, {device.name} is "
                f"{device.architecture}; use --no-flash-attention"
            )
