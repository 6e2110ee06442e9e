"""What each layer costs on every mesh that a stage may have: the options of a place.

A mesh is a power of two of devices inside a fast domain, or whole domains, cut into
tp × dp (Zheng et al., OSDI 2022, section 5.2); with it go recompute and ep. Each is
priced as a pipeline with a layer a stage, all of them together: of a model with as few
layers as tell what all of them cost (`shortened`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Final

import numpy as np

from costmodel.layout import CP_KINDS, SQRT, Layout, Stage, Uniform, spell_out
from costmodel.machine import Machine
from costmodel.stages import (
    DataParallel,
    Known,
    LayoutPricer,
    PeakContents,
    Process,
    StagePrice,
    StatePolicy,
    accumulated,
    data_parallel,
    exchanges,
    host_step,
    memory,
    pipeline_buffers,
    price_together,
    sharded_experts,
    shared_parameters,
    updated,
)
from planner.heterogeneous.candidates import Option
from planner.problem import Axes, Place, Problem, divisors
from profiles.arrays import Array
from profiles.errors import MeshwrightError
from profiles.models import DecoderSpec, ModelGraph
from profiles.units import GB

ENDING: Final = 2  # stages at the end that may be unlike others: head, what is before


def shortened(problem: Problem) -> Problem:
    """*problem* of a model with as few layers as tell what all of them cost."""
    job, islands = problem.job, problem.machine.cluster.islands
    graph, spec = job.graph, job.spec
    if not graph.turn or not isinstance(spec, DecoderSpec):
        return problem
    leading = graph.runs[0][1] if len(graph.runs) == 2 else 0
    neighbours = max(island.devices_per_node for island in islands)
    least = max(leading + graph.turn + ENDING, neighbours)
    turns = (spec.layers - least) // graph.turn
    if turns <= 0:
        return problem
    fewer = replace(spec, layers=spec.layers - turns * graph.turn)
    return replace(problem, job=replace(job, spec=fewer))


def like(graph: ModelGraph, short: ModelGraph) -> Array:
    """Of each stage of a layer of *graph* the one of the *short* model that it is like.

    Those that are left out lie before its last two.
    """
    kept, left_out = short.body - ENDING, np.arange(graph.body - short.body)
    if not len(left_out):
        return np.arange(graph.body)
    turned = kept - graph.turn + left_out % graph.turn
    return np.concatenate([np.arange(kept), turned, np.arange(kept, short.body)])


def joined(
    layout: Layout, graph: ModelGraph, stages: Sequence[int], first: int, end: int
) -> Stage:
    """Stages *first* to *end* − 1 of *graph*, a layer each, as one; each of *stages*
    is the number of the one of *layout*, of the short model, that it is like."""
    alike = [layout.stages[number] for number in stages]
    start = sum(len(stage.layers) for stage in alike[:first])
    plans = tuple(plan for stage in alike[first:end] for plan in stage.plans)
    return replace(
        layout.stages[0],
        layers=graph.layer_names[start : start + len(plans)],
        plans=plans,
    )


MANY: Final = 1e12  # parameters, of which what a message costs is nothing
LONG_S: Final = 1e12  # of a backward: it hides whatever may leave behind it
LARGE_BYTES: Final = 1e6 * GB  # of activations: more than any step needs


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Priced:
    """An option of a place, and its layout: a layer of the short model a stage."""

    layout: Layout
    option: Option
    place: Place


def priced_at(problem: Problem, m: int, place: Place, alike: Array) -> list[Priced]:
    """Every option that a stage at *place* has, as *problem* asks there; of a model
    each of whose layers is *alike* one of the problem's."""
    layouts = tuple(_layouts(problem, m))
    pricers = [
        LayoutPricer(job=problem.job, layout=layout, machine=problem.machine)
        for layout in layouts
    ]
    price_together(pricers)
    known = Known()
    return [
        Priced(
            layout=layout,
            option=_option(problem, layout, pricer.columns()[alike], known),
            place=place,
        )
        for layout, pricer in zip(layouts, pricers, strict=True)
    ]


def _layouts(problem: Problem, m: int) -> Iterator[Layout]:
    for choice in _choices(problem, m):
        try:
            yield spell_out(choice, problem.job.graph, problem.job.global_batch)
        except MeshwrightError:  # a degree that does not divide
            continue


def _choices(problem: Problem, m: int) -> Iterator[Uniform]:
    """Every mesh with its treatments, for a stage of a layer."""
    axes, pins, graph = Axes(problem=problem), problem.pins, problem.job.graph
    share, cp = problem.job.global_batch // m, pins.cp or 1
    recomputes = axes.recomputes()
    if len(recomputes) > 1:  # a layer alone is no segment
        recomputes = [one for one in recomputes if one != (SQRT,)]
    widths = set(axes.tp())
    for devices in _sizes(problem):
        if devices % cp:
            continue
        for tp in divisors(devices // cp):
            dp = devices // (tp * cp)
            fits = tp in widths and share % dp == 0 and pins.dp in (None, dp)
            fits = fits and dp % (pins.zero_group or 1) == 0
            if not fits or pins.micro_batch not in (None, share // dp):
                continue
            split = tp > 1 if pins.sequence_parallel is None else pins.sequence_parallel
            if tp > 1 and not split and problem.needs_sequence_parallel:
                continue
            zero = 1 if pins.zero is None else pins.zero
            for (ep, etp), (code,), (kind,) in product(
                axes.experts(tp, cp, dp),
                recomputes,
                axes.cp_kinds(tp, cp)[:1],  # one for the whole pipeline
            ):
                yield Uniform(
                    tp=tp,
                    pp=graph.body,
                    dp=dp,
                    cp=cp,
                    cp_kind=CP_KINDS[kind],
                    ep=ep,
                    etp=etp,
                    micro_batch=share // dp,
                    zero=zero,
                    zero_group=pins.zero_group or dp,
                    sequence_parallel=split and tp > 1,
                    recompute=problem.recomputes[code],
                    flash_attention=problem.flash_attention,
                    precision=problem.precision,
                    gradient_format=problem.gradient_format,
                    offload=problem.offload,
                )


def _sizes(problem: Problem) -> list[int]:
    """Devices of a stage: powers of two in a fast domain, then whole domains."""
    domain = min(problem.machine.island.domain, problem.gpus)
    inside = [2**power for power in range(domain.bit_length()) if 2**power <= domain]
    return sorted({*inside, *range(domain, problem.gpus + 1, domain)})


def _option(
    problem: Problem, layout: Layout, price: StagePrice, known: Known
) -> Option:
    mesh = layout.stages[0].mesh
    once_s = price.reduce_s + price.step_s + price.gather_s
    parallel = data_parallel(mesh, layout.stages[0].plans[0].zero, 2)
    (base, states, saved, working), (alone, *_) = known.once(
        ("bytes", _degrees(layout)),
        lambda: (
            _bytes(problem, layout, parallel),
            _bytes(problem, layout, replace(parallel, pp=1)),
        ),
    )
    buffers = float(pipeline_buffers(problem.machine, 2))
    shared = _shared_parameters(problem) / mesh.tp
    kept = float(price.saved_bytes.sum()) * saved
    least_s, shared_s = _least_s(problem, layout, price, known)
    return Option(
        devices=mesh.size,
        seconds=price.forward_s + price.backward_s + once_s / layout.micro_batches,
        least_s=least_s,
        shared_s=shared_s,
        saved_bytes=price.saved_bytes * saved * buffers,
        state_bytes=(price.parameters + price.expert_parameters) * states,
        working_bytes=working
        * np.maximum(price.forward_working_bytes, price.backward_working_bytes),
        base_bytes=base,
        alone_bytes=base - alone + shared * states + (buffers - 1) * kept,
        capacity_bytes=problem.memory_limit_bytes,
    )


def _degrees(layout: Layout) -> tuple[object, ...]:
    """How *layout* lies on its ranks: those that differ in recompute alike."""
    stage = layout.stages[0]
    return stage.mesh, stage.plans[0].zero


def _least_s(
    problem: Problem, layout: Layout, price: StagePrice, known: Known
) -> tuple[Array, Array]:
    """What each layer adds to a stage at the least, as `Option.least_s` has it, and
    what a table that the model's ends share adds: nothing is exposed of what passes
    gather and scatter or have away, and gradients are added up and summed, parameters
    updated and gathered, at the best rate."""
    on, stage, experts = problem.machine, layout.stages[0], price.expert_parameters
    parallel = data_parallel(stage.mesh, stage.plans[0].zero, 2)
    apart = sharded_experts(parallel, on.framework, layout.offload)
    number = layout.precision
    added = accumulated(
        price.parameters, parallel, number, on, frozen=price.frozen_parameters
    )
    more = accumulated(experts, apart, number, on).where(experts > 0)
    rates, (step_rate, experts_step_rate) = known.once(
        ("rates", _degrees(layout)),
        lambda: (
            [_gradient_rates(one, layout, on) for one in (parallel, apart)],
            [_step_rate(problem, one, layout, parallel) for one in (parallel, apart)],
        ),
    )
    (add_rate, reduce_rate, gather_rate), (experts_rate, _, experts_gather_rate) = rates
    hidden_s = price.data_comm_s + price.offload_s
    forward_s = np.maximum(price.forward_s - hidden_s, 0.0)
    both_s = price.forward_s + price.backward_s - hidden_s
    both_s = both_s - added.seconds - more.seconds
    both_s = both_s + price.parameters * add_rate + experts * experts_rate
    # What the next forward hides of a gathering, that loses a share of.
    shown = (
        on.framework.overlap.contention
        if "param" in on.framework.overlap.hidden
        else 1.0
    )
    if shown < 1 and np.any(hidden_s > 0):
        gather_rate = experts_gather_rate = 0.0
    gather_s = price.parameters * gather_rate + experts * experts_gather_rate
    step_s = price.parameters * step_rate + experts * experts_step_rate
    least_s = [
        forward_s,
        np.maximum(both_s - forward_s, 0.0),
        price.parameters * reduce_rate,  # and what experts add to it
        step_s + shown * gather_s,
        (1 - shown) * gather_s,
    ]
    step_rate += shown * gather_rate
    gather_rate *= 1 - shown
    shared = np.array([0.0, add_rate, reduce_rate, step_rate, gather_rate])
    return np.array(least_s), _shared_parameters(problem) / stage.mesh.tp * shared


def _gradient_rates(
    parallel: DataParallel, layout: Layout, on: Machine
) -> tuple[float, float, float]:
    """Seconds of a parameter, of very many: its gradient added up in a micro-batch, and
    summed once a step, and it gathered then."""
    many, number = np.asarray(MANY), layout.precision
    added = accumulated(many, parallel, number, on)
    found = exchanges(many, parallel, number, on, offload=layout.offload)
    reduce_s, gather_s = (
        float(on.once_a_step(each).seconds)
        for each in (found.step_reduce, found.step_gather)
    )
    return float(added.seconds) / MANY, reduce_s / MANY, gather_s / MANY


def _step_rate(
    problem: Problem, parallel: DataParallel, layout: Layout, layers: DataParallel
) -> float:
    """Seconds of the optimizer's step for a parameter, of very many; *layers* is the
    data parallelism of those that are no experts."""
    many, job, on = np.asarray(MANY), problem.job, problem.machine
    asked = many, parallel, layout.precision, on, job.optimizer
    if not layout.offload.optimizer:
        return float(updated(*asked).seconds) / MANY
    away = host_step(
        *asked, offload=layout.offload, backward_s=np.asarray(LONG_S), layers=layers
    )
    return float(away.seconds) / MANY


def _shared_parameters(problem: Problem) -> float:
    """Of the table that embedding and head share, if they do."""
    graph = problem.job.graph
    if not graph.tied:
        return 0.0
    return float(shared_parameters(graph, graph.tied[0][-1], 1))


def _bytes(
    problem: Problem, layout: Layout, parallel: DataParallel
) -> tuple[float, float, float, float]:
    """Of a rank's memory what is always there, and the bytes for each parameter, each
    saved byte and each working byte, while passes run (not the step)."""
    states, saved, working = GB * np.eye(3)
    framework = problem.machine.framework
    found = memory(
        PeakContents(
            parameters=np.array([0.0, 0.0, *states]),
            gathered_bytes=np.zeros(5),
            activation_bytes=np.array([0.0, *(LARGE_BYTES + np.array([0.0, *saved]))]),
            transient_bytes=np.array([0.0, 0.0, *working]),
        ),
        policy=StatePolicy(
            precision=layout.precision,
            moments=problem.job.moments,
            offload=layout.offload,
        ),
        process=Process(
            device=problem.machine.device,
            ranks=np.asarray(problem.gpus),
            fully_shard=framework.fully_shard,
            footprint=framework.footprint,
        ),
        parallel=parallel,
        micro_batches=layout.micro_batches,
    ).secured
    base, passes, *more = found.tolist()
    states, saved, working = ((each - passes) / GB for each in more)
    return base, states, saved, working
