"""May a layout's explicit shardings run so? Every violation, not just the first.

Each is of an operator of its layer, a split of one of its loops, over the tp axis; what
one hands on is what the next is given, the layer's ends are its preset's, and all that
is split divides.
"""

from __future__ import annotations

from collections.abc import Iterator

from costmodel.layout import LayerPlan, Layout, Stage
from costmodel.module_sharding import ModuleSharding
from costmodel.operator_sharding import dimension, loops_of
from costmodel.placements import PARTIAL, WHOLE, Placed, split
from profiles.errors import InvalidSpec
from profiles.graph import Block
from profiles.job import Job
from profiles.operators import Kind, Operator

AXES = ("tp",)
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
