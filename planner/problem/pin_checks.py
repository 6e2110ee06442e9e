"""Pins that contradict each other, the GPUs, the model or the batch.

Nets, from the finest to the coarsest: the rules of `costmodel.support.legality` on
what is pinned alone, and `costmodel.support.support_table`'s where it is to be
executed; what only a search has to say; and whether anything is left at all.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from math import prod
from typing import Any

from costmodel.layout import Uniform, body_presets
from costmodel.options import Pins, cuts_products
from costmodel.schedule import SCHEDULES, flushes, holders, least_chunks
from costmodel.simulation import NO_CUT, has_experts, zero_plus_of
from costmodel.support import known_of, refusals, refused, violations
from planner.problem.problem import Problem
from planner.problem.regions import has_even_depth, only_unlike
from planner.problem.space import Space
from planner.problem.table import length
from profiles.commandline import given
from profiles.errors import Contradiction, Unsupported

DEGREES = ("tp", "pp", "dp", "cp")
_NOT_LAYOUT = (
    *("overlap", "bucket_mb", "flash_attention"),
    *("offload", "offload_to", "imbalance", "compress_activations"),
    "compress_gradients",
    *("zero_quantized_weights", "zero_quantized_gradients"),
    "zero_hpz_partition_size",
)


def require_consistent(problem: Problem) -> None:
    """Raise for pins and machine options that no layout could keep.

    Raises Contradiction, UnknownName, InvalidSpec, Unsupported.
    """
    _require_searched(problem)
    cluster = problem.machine.cluster
    alone = Uniform(
        dp=problem.gpus,
        precision=problem.precision,
        flash_attention=problem.flash_attention,
        offload=problem.offload,
        zero=_fewest(problem),
    )
    unit = replace(problem.job, global_batch=problem.gpus)
    found = [*_between(problem), *violations(alone, unit, cluster)]
    found += violations(_least(problem), problem.job, cluster)
    if found:
        raise Contradiction("; ".join(dict.fromkeys(found)))
    found = refusals(_carried(problem), problem.job) if problem.executable else []
    if found:
        raise Unsupported(f"{refused(found)}, --any-mechanism plans it")
    missing = _not_had(problem)
    if missing:
        raise Unsupported(f"{'; '.join(missing)}; --any-mechanism plans it anyway")


def require_possible(problem: Problem) -> None:
    """Raise Contradiction if there are layouts, but none that keeps the pins. Of stages
    of any mesh alone, a search says."""
    if only_unlike(problem) and not has_even_depth(problem):
        return
    pinned = pinned_words(problem.pins)
    if length(Space.of(problem).trunks) or not pinned:
        return
    if length(Space(problem=problem.without_pins()).trunks):
        job = problem.job
        carried = " that `execute` supports" if problem.executable else ""
        if problem.runs_on is not None:
            carried = f" that {problem.runs_on} runs"
        raise Contradiction(
            f"no layout of {job.model} on {problem.gpus} GPUs with a batch of "
            f"{job.global_batch} and sequences of {job.seq_len}{carried} keeps all of "
            f"{pinned}; leave one out"
        )


def layout_pins(pins: Pins) -> dict[str, object]:
    """The pins that narrow the space, by name."""
    return {
        name: value for name, value in given(pins).items() if name not in _NOT_LAYOUT
    }


def pinned_words(pins: Pins) -> str:
    """The layout options that were given, as they were.

    >>> pinned_words(Pins(tp=8, sequence_parallel=False))
    '--tp 8 --no-sequence-parallel'
    """
    words = []
    for name, value in layout_pins(pins).items():
        flag = name.replace("_", "-")
        if isinstance(value, bool):
            words.append(f"--{flag}" if value else f"--no-{flag}")
        else:
            words.append(f"--{flag} {value}")
    return " ".join(words)


def _require_searched(problem: Problem) -> None:
    pins = problem.pins
    if pins.recompute is not None:
        body_presets(pins.recompute, problem.job.graph)  # it knows the operators
    if pins.recompute == "sqrt" and pins.recompute_layers is not None:
        raise Unsupported(
            "--recompute sqrt beside --recompute-layers is not searched: leave one of "
            "them out, or price the layout with simulate"
        )
    if pins.compress_gradients is not None:
        raise Unsupported(
            "--compress-gradients is not searched: leave it out, or price a layout "
            "with it by simulate"
        )
    plus = zero_plus_of(pins)
    if plus.anything and has_experts(problem.job):
        raise Unsupported(
            f"ZeRO++ ({plus}) with experts is not priced: leave one of them out"
        )
    if pins.schedule is not None:
        least = least_chunks(pins.schedule)
        if not (problem.allow_async or flushes(pins.schedule)):
            raise Contradiction(
                f"--schedule {pins.schedule} does not flush: its gradients are made "
                "with weights of earlier updates, and no price says what that does to "
                "convergence; add --allow-async to plan it, or choose 1f1b"
            )
        one = SCHEDULES[pins.schedule].copies == least == 1 and flushes(pins.schedule)
        pp = pins.pp or (1 if one else 2)
        holders(pins.schedule, pp, pins.virtual_stages or least)


def _least(problem: Problem) -> Uniform:
    """The pins, and ones elsewhere: a divisor of every layout that keeps them."""
    pins = problem.pins
    tp = pins.tp or 1
    virtual = pins.virtual_stages or 1
    woven = virtual > 1 and (pins.pp or 1) > 1
    return Uniform(
        tp=tp,
        pp=pins.pp or 1,
        dp=pins.dp or 1,
        cp=pins.cp or 1,
        ep=1 if has_experts(problem.job) else pins.ep or 1,
        etp=1 if has_experts(problem.job) else pins.etp or 1,
        micro_batch=pins.micro_batch or 1,
        schedule="interleaved" if woven else "1f1b",
        virtual_stages=virtual if woven else 1,
        zero=pins.zero if pins.zero is not None else _fewest(problem),
        zero_group=(pins.zero_group or 1) if pins.dp else 1,
        sequence_parallel=_splits_sequence(problem, tp),
        cp_kind=pins.cp_kind or "ring",
        precision=problem.precision,
        flash_attention=problem.flash_attention,
        offload=problem.offload,
    )


def _fewest(problem: Problem) -> int:
    """The level that a layout has where nobody says."""
    return 3 if problem.offload.parameters else 1


def _splits_sequence(problem: Problem, tp: int) -> bool:
    asked = problem.pins.sequence_parallel
    if asked is None and tp > 1 and problem.needs_sequence_parallel:
        return True
    return bool(asked) and (tp > 1 or bool(problem.pins.tp))


def _carried(problem: Problem) -> Uniform:
    """The pins, and elsewhere what is carried out if anything is."""
    pins, least = problem.pins, _least(problem)
    dp = pins.dp or pins.zero_group or 1
    grouped = (pins.zero_group or 1) > 1 or problem.offload.parameters
    sharded = _fewest(problem) if grouped else 0
    return replace(
        least,
        dp=dp,
        zero=sharded if pins.zero is None else pins.zero,
        zero_group=pins.zero_group or dp,
        recompute=pins.recompute or "none",
        recompute_layers=pins.recompute_layers,
        gradient_format=problem.gradient_format,
    )


def _not_had(problem: Problem) -> list[str]:
    """What of the pins, and of what all candidates share, the framework has not."""
    if problem.capabilities is None:
        return []
    pins, carried = problem.pins, _carried(problem)
    given = {name for name in layout_pins(pins) if hasattr(carried, name)}
    if (pins.virtual_stages or 1) > 1:
        given.add("schedule")
    rest = problem.gpus // prod(getattr(pins, name) or 1 for name in DEGREES)
    # What a mechanism is asked for on, where nobody says on how many ranks.
    beside = {
        "pp": "schedule" in given and pins.schedule != "1f1b",  # as a single stage
        "cp": "cp_kind" in given,
        "tp": "sequence_parallel" in given,
        "dp": rest > 1 and bool({"zero", "zero_group"} & given),
    }
    more: dict[str, Any] = {
        name: 2 for name, asked in beside.items() if asked and name not in given
    }
    if "dp" in more and pins.zero_group is not None:
        more["dp"] = rest
    for name in ("schedule", "sequence_parallel"):
        if getattr(pins, name) is not None:
            more[name] = getattr(pins, name)
    about = known_of({*given, *more, "cp"}) - (
        {"layers of stages", *DEGREES}.difference(given)
        | ({"zero", "zero group"} if "zero" not in given else set())
    )
    return problem.capabilities.lacks(replace(carried, **more), problem.job, about)


def _spread(problem: Problem) -> Iterator[str]:
    """What pins of experts say against the model and the GPUs."""
    moe, pins = problem.job.moe, problem.pins
    if moe is None:
        return
    spread_over = (pins.ep or 1) * (pins.etp or 1)
    if pins.ep is not None and moe.experts % pins.ep:
        yield f"ep={pins.ep} does not divide the {moe.experts} experts"
    if problem.gpus // (pins.pp or 1) % spread_over:
        yield (
            f"ep {pins.ep or 1} × etp {pins.etp or 1} = {spread_over} does not divide "
            f"the {problem.gpus // (pins.pp or 1)} ranks of a stage"
        )


def _between(problem: Problem) -> Iterator[str]:
    """What pins say against the GPUs, the batch and each other."""
    pins, gpus, batch = problem.pins, problem.gpus, problem.job.global_batch
    uneven = only_unlike(problem)  # `pp` counts stages of any size
    names = [name for name in DEGREES if not (uneven and name == "pp")]
    degrees = {name: getattr(pins, name) for name in names}
    fixed = {name: value for name, value in degrees.items() if value}
    product = 1
    for value in fixed.values():
        product *= value
    words = " × ".join(f"{name} {value}" for name, value in fixed.items())
    if gpus % product:
        equals = f" = {product}" if len(fixed) > 1 else ""
        yield f"{words}{equals} does not divide {gpus} GPUs"
    elif len(fixed) == len(DEGREES) and product != gpus:
        yield f"{words} = {product}, not {gpus} GPUs; leave one of them out"
    if not uneven:
        yield from _spread(problem)
    pieces = (pins.dp or 1) * (pins.micro_batches or 1)
    if pins.micro_batches is not None and batch % pieces:
        yield (
            f"global batch {batch} does not split into {pins.micro_batches} "
            f"micro-batches × dp {pins.dp or 1}"
        )
    if cuts_products(pins) and (pins.tp or 1) > 1 and pins.sequence_parallel is False:
        yield NO_CUT
    if pins.zero == 0 and (pins.zero_group or 1) > 1:
        yield "--zero-group needs --zero 1, 2 or 3"
    if (pins.virtual_stages or 1) > 1 and pins.pp == 1:
        yield f"--virtual-stages {pins.virtual_stages} needs --pp 2 or more"
