"""Which layouts `parallelize` supports for a user's own module; others need `execute`.

Everything that a layout says is either done or refused with its reason, before anything
trains: a plan that is followed by half is not the one that was priced.
"""

from __future__ import annotations

from collections.abc import Iterator

from costmodel.layout import EVERYTHING, Layout
from costmodel.support import Combination
from profiles.errors import Unsupported
from profiles.hardware import Format, precision
from runtime.models import policy
from runtime.offload import StateOffload, level

SCHEDULES = ("gpipe", "1f1b", "interleaved")


def require_executable(layout: Layout) -> None:
    """Raise Unsupported, with every reason, for what no module of one's own does."""
    found = list(_reasons(layout, Combination.of_layout(layout)))
    if found:
        raise Unsupported("; ".join(found))


def fsdp_level(layout: Layout) -> int:
    """The ZeRO level that `fully_shard` is given; 0 where it is not used.

    Weights of 16 bits have their masters in its shards, also where ZeRO asks for none.
    """
    stage = layout.stages[0]
    ranks = stage.mesh.dp * stage.mesh.cp
    found = level(stage.plans[0].zero, layout.offload, ranks=ranks)
    return found or (2 if policy(layout.precision_name).master else 0)


def state_offload(layout: Layout) -> StateOffload:
    """Which of its states are in the host's memory, or on its drive."""
    return StateOffload.of(layout.offload, fsdp_level(layout))


def recomputed_layers(layout: Layout) -> list[bool]:
    """For each numbered layer, in order, whether backward runs it again."""
    return [
        EVERYTHING in plan.retention.recomputed
        for stage in layout.stages
        for name, plan in zip(stage.layers, stage.plans, strict=True)
        if name.isdigit()
    ]


def _reasons(layout: Layout, used: Combination) -> Iterator[str]:
    yield from _of_modules(used)
    yield from _of_ranks(layout, used)
    yield from _of_retention(used)
    yield from _of_states(layout, used)


def _of_modules(used: Combination) -> Iterator[str]:
    """What changes what a module computes."""
    if used.by_modules:
        yield (
            "per-operator shardings are for the catalogue's layers: train with "
            "`execute`, or leave the modules of the plans out and give styles"
        )
    cut = {"cp": used.cp, "ep": used.ep, "etp": used.etp}
    found = [f"{name} {degree}" for name, degree in cut.items() if degree > 1]
    if found:
        yield (
            f"a layout with {', '.join(found)} changes what a module computes, which "
            "needs a model of the catalogue: train it with `execute`, or plan with "
            "--cp 1 --ep 1"
        )
    if policy(used.precision).eight_bits:
        yield (
            f"precision {used.precision} is implemented for the catalogue's layers "
            "only: train with `execute`, or plan with --precision bf16"
        )
    if used.pp > 1 and policy(used.precision).scaled:
        yield (
            f"precision {used.precision} scales the loss, whose backward is inside a "
            "pipeline's step: plan with a bf16 precision or fp32, or with --pp 1 and a "
            "GradScaler of the loop's own"
        )
    if used.tp > 1 and True in used.sequence_parallel:
        yield (
            "a layout with sequence parallelism splits what lies between a module's "
            "linear layers: train it with `execute`, or plan with "
            "--no-sequence-parallel"
        )


def _of_ranks(layout: Layout, used: Combination) -> Iterator[str]:
    if used.stages != "alike":
        yield (
            f"a layout whose stages are {used.stages}: give all stages one mesh, held "
            "in turn, of ranks without gaps"
        )
    if used.pp > 1 and used.schedule not in SCHEDULES:
        yield (
            f"schedule {used.schedule} is not supported for your own modules; "
            f"choose {', '.join(SCHEDULES)}"
        )
    if used.dp * used.cp > 1 and len(used.zero) > 1:
        yield "layers have different ZeRO levels: give all of them the same"


def _of_retention(used: Combination) -> Iterator[str]:
    other = sorted((used.retentions | used.of_ends) - {"none", "full"})
    if other or used.of_ends - {"none"}:
        yield (
            "recompute or offload inside a layer "
            f"({', '.join(other) or 'of embedding or head'}): a unit is kept or "
            "recomputed as a whole; train with `execute`, or choose recompute none or "
            "full, without --offload activations"
        )


def _of_states(layout: Layout, used: Combination) -> Iterator[str]:
    kept = precision(layout.precision_name, gradient=layout.gradient_format)
    if kept.reduced_copy is not None or kept.gradient is not Format.FP32:
        yield (
            f"gradients in {layout.gradient_format}: they are summed in 32 bits; leave "
            "--grad-dtype out or say fp32"
        )
    offload = layout.offload
    if offload.parameters and not offload.optimizer:
        yield (
            "offloaded parameters are updated on the host: add optimizer to --offload"
        )
    if offload.parameters and used.dp > 1 and used.zero != {3}:
        yield "only ZeRO-3's shards can be offloaded: choose --zero 3"
