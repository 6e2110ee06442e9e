"""What each layer costs on every mesh that a stage may have: the options of a place.

A mesh is a power of two of devices inside a fast domain, or whole domains, cut into
tp × dp (Zheng et al., OSDI 2022, section 5.2); with it go recompute and ep. Each is
priced as a pipeline with a layer a stage, all of them together.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from typing import Final

import numpy as np

from costmodel.columns import SQRT
from costmodel.data_parallel import (
    DataParallel,
    exchanges,
    full_messages,
    sharded_experts,
)
from costmodel.known import Known
from costmodel.layout import CP_KINDS, Layout
from costmodel.layout_price import LayoutPricer, price_together
from costmodel.machine import Machine
from costmodel.memory import memory, pipeline_buffers
from costmodel.mesh_parallel import data_parallel
from costmodel.offload_price import host_step
from costmodel.software import hides_gradients
from costmodel.stage import StagePrice
from costmodel.step_work import accumulated, updated
from costmodel.uniform import Uniform, spell_out
from planner.axes import Axes
from planner.problem import Problem
from planner.stage_kinds import Array
from planner.stage_layers import Option
from planner.stage_passes import Passes
from planner.stage_places import Place
from planner.table import divisors
from profiles.errors import MeshwrightError
from profiles.units import GB

MANY: Final = 1e12  # parameters, of which what a message costs is nothing
LONG_S: Final = 1e12  # of a backward: it hides whatever may leave behind it
LARGE_BYTES: Final = 1e6 * GB  # of activations: more than any step needs
Priced = tuple[Layout, Option, Passes, Place]


def priced_at(problem: Problem, m: int, place: Place, alike: Array) -> list[Priced]:
    """Every option that a stage at *place* has, as *problem* asks there; of a model
    each of whose layers is *alike* one of the problem's."""
    layouts = tuple(_layouts(problem, m))
    pricers = [
        LayoutPricer(job=problem.job, layout=layout, machine=problem.machine)
        for layout in layouts
    ]
    price_together(pricers)
    prices = [pricer.columns().take(alike) for pricer in pricers]
    known = Known()
    return [
        (
            layout,
            replace(
                _option(problem, layout, price, known),
                capacity_bytes=problem.memory_limit_bytes,
                span=place.span,
            ),
            _passes(problem, layout, price, known),
            place,
        )
        for layout, price in zip(layouts, prices, strict=True)
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
                _of_a_layer(axes.recomputes()),
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


def _of_a_layer(recomputes: list[tuple[int, ...]]) -> list[tuple[int, ...]]:
    """Those that differ for a layer alone, which is no segment."""
    return [one for one in recomputes if one != (SQRT,) or len(recomputes) == 1]


def _sizes(problem: Problem) -> list[int]:
    """Devices of a stage: powers of two in a fast domain, then whole domains."""
    domain = min(problem.machine.island.domain, problem.gpus)
    inside = [2**power for power in range(domain.bit_length()) if 2**power <= domain]
    return sorted({*inside, *range(domain, problem.gpus + 1, domain)})


def _option(
    problem: Problem, layout: Layout, price: StagePrice, known: Known
) -> Option:
    mesh = layout.stages[0].mesh
    m = layout.micro_batches
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
    return Option(
        devices=mesh.size,
        seconds=price.forward_s + price.backward_s + once_s / m,
        saved_bytes=price.saved_bytes * saved * buffers,
        state_bytes=(price.parameters + price.expert_parameters) * states,
        working_bytes=working
        * np.maximum(price.forward_working_bytes, price.backward_working_bytes),
        base_bytes=base,
        alone_bytes=base - alone + shared * states + (buffers - 1) * kept,
    )


def _degrees(layout: Layout) -> tuple[object, ...]:
    """How a menu's *layout* lies on its ranks: those that differ in recompute alike."""
    stage = layout.stages[0]
    return stage.mesh, stage.plans[0].zero


def _passes(
    problem: Problem, layout: Layout, price: StagePrice, known: Known
) -> Passes:
    """What each layer adds to a stage at the least: nothing is exposed of what its
    passes gather and scatter or have away, and gradients are added up and summed,
    parameters updated and gathered at the best rate. A gathering behind a forward that
    takes longer than this knows counts nothing, nor do gradients that leave for an
    optimizer that is away."""
    on, stage, held = problem.machine, layout.stages[0], price.expert_parameters > 0
    parallel = data_parallel(stage.mesh, stage.plans[0].zero, 2)
    apart = sharded_experts(parallel, on.software, layout.offload)
    number = layout.precision
    frozen = price.frozen_parameters
    added = accumulated(price.parameters, parallel, number, on, frozen=frozen)
    more = accumulated(price.expert_parameters, apart, number, on).where(held)
    rates, (step_rate, experts_step_rate) = known.once(
        ("rates", _degrees(layout)),
        lambda: (
            [_gradient_rates(one, layout, on) for one in (parallel, apart)],
            [_step_rate(problem, one, layout, parallel) for one in (parallel, apart)],
        ),
    )
    (add_rate, reduce_rate, gather_rate), (experts_rate, _, experts_gather_rate) = rates
    add_s = price.parameters * add_rate + price.expert_parameters * experts_rate
    hidden_s = price.data_comm_s + price.offload_s
    forward_s = np.maximum(price.forward_s - hidden_s, 0.0)
    both_s = price.forward_s + price.backward_s - hidden_s
    both_s = both_s - added.seconds - more.seconds + add_s
    table = _shared_parameters(problem) / stage.mesh.tp
    hides = "param" in on.software.overlap
    if hides and np.any(hidden_s > 0):
        gather_rate = experts_gather_rate = 0.0
    return Passes(
        forward_s=forward_s,
        backward_s=np.maximum(both_s - forward_s, 0.0),
        reduce_s=price.parameters * reduce_rate,  # and what experts add to it
        step_s=price.parameters * step_rate
        + price.expert_parameters * experts_step_rate,
        gather_s=price.parameters * gather_rate
        + price.expert_parameters * experts_gather_rate,
        messages=full_messages(
            price.trained_parameters, parallel, np.ones(()), number, on
        )
        * np.ones_like(forward_s),
        hides_gathers=hides,
        hides_reductions=bool(hides_gradients(on.software, stage.mesh.tp)),
        contention=on.software.contention,
        shared_backward_s=table * add_rate,
        shared_reduce_s=table * reduce_rate,
        shared_step_s=table * step_rate,
        shared_gather_s=table * gather_rate,
        shared_messages=float(
            full_messages(np.asarray(table), parallel, np.zeros(()), number, on)
        ),
    )


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
    extents = graph.block("head").extents
    return float(extents["vocab"] * extents["hidden"])


def _bytes(
    problem: Problem, layout: Layout, parallel: DataParallel
) -> tuple[float, float, float, float]:
    """Of a rank's memory what is always there, and the bytes for each parameter, each
    saved byte and each working byte, while passes run (not the step)."""
    states, saved, working = GB * np.eye(3)
    software = problem.machine.software
    found = memory(
        parameters=np.array([0.0, 0.0, *states]),
        gathered_bytes=np.zeros(5),
        activation_bytes=np.array([0.0, *(LARGE_BYTES + np.array([0.0, *saved]))]),
        transient_bytes=np.array([0.0, 0.0, *working]),
        parallel=parallel,
        precision=layout.precision,
        moments=problem.job.moments,
        device=problem.machine.device,
        ranks=np.asarray(problem.gpus),
        fully_shard=software.fully_shard,
        micro_batches=layout.micro_batches,
        footprint=software.footprint,
        offload=layout.offload,
    ).secured
    base, passes, *more = found.tolist()
    states, saved, working = ((each - passes) / GB for each in more)
    return base, states, saved, working
