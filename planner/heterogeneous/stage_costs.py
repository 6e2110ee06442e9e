"""What each layer costs on every mesh that a stage may have: the options of a place.

A mesh is a power of two of devices inside a fast domain, or whole domains, cut into
tp × dp (Zheng et al., OSDI 2022, section 5.2); with it go recompute and ep. Each is
priced as a pipeline with a layer a stage, all of them together.

What stages on the meshes of a menu take at the least: their passes, what their
gradient reduction takes longer than the last backward, and their step.

A gradient is summed once it is made, so a stage's reduction of c seconds begins when
its last backward of b does, at the earliest, and no rank steps before all have reduced:

    T ≥ when the last backward of s ends + late,  late = max(0, c − b)

The last backward of the first stage is the pipeline's last pass, so that its `late`
comes on top of all that others take. Once all have reduced, each rank updates its
parameters and gathers what others did, as far as the next forward does not hide that;
with what a backward loses to a reduction beside it this is its `update`, and the
longest of these comes on top of all (as `costmodel.stages.stage_cost` and `timeline`
have it). The pipeline's two ends then sum the gradient of a tied table, others do not:

    T ≥ max(update of an end + tied, update of another) = tied + max(…, update − tied)

Neighbouring layers as one: what is cut over islands where layers are very many.

Tables of stages take the square of the layers. Cuts between groups of them are some of
all cuts, and the bound then speaks of those alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product
from math import ceil
from typing import Final, TypeVar

import numpy as np

from costmodel.layout import CP_KINDS, SQRT, Layout, Uniform, spell_out
from costmodel.machine import Machine, hides_gradients
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
    exposed_s,
    full_messages,
    host_step,
    memory,
    pipeline_buffers,
    price_together,
    sharded_experts,
    updated,
)
from costmodel.timeline import reduce_tail_s
from planner.heterogeneous.candidates import Option, stages_sums
from planner.problem import Axes, Place, Problem, divisors
from profiles.arrays import Array
from profiles.errors import MeshwrightError
from profiles.units import GB

Kind = TypeVar("Kind")


@dataclass(frozen=True, kw_only=True, eq=False)
class Passes:
    """Seconds of each layer on a mesh, arrays [layers]: of a micro-batch, and of
    summing its gradients, updating and gathering its parameters once a step; no stage
    that holds it takes less for it. But of a parameter that the model's ends share and
    both count, one with all layers takes the `shared` seconds once. Where passes hide
    what is gathered or reduced, they lose `contention` of it."""

    forward_s: Array
    backward_s: Array
    reduce_s: Array
    step_s: Array
    gather_s: Array
    messages: Array  # that a layer's gradients fill
    layers: Array | float = 1.0  # that each of them stands for
    hides_gathers: bool = False
    hides_reductions: bool = False
    contention: float = 0.0
    shared_backward_s: float = 0.0
    shared_reduce_s: float = 0.0
    shared_step_s: float = 0.0
    shared_gather_s: float = 0.0
    shared_messages: float = 0.0

    @property
    def both_s(self) -> Array:
        return np.asarray(self.forward_s + self.backward_s)

    @cached_property
    def stages_s(self) -> tuple[Array, Array, Array, Array]:
        """[first, last] → seconds of a stage: forward, backward, what its reduction is
        late, its update. Infinite or 0 where last is before first."""
        forward_s = stages_sums(self.forward_s)
        backward_s = stages_sums(self.backward_s)
        reduce_s = stages_sums(self.reduce_s)
        backward_s[0, -1] -= self.shared_backward_s
        reduce_s[0, -1] -= self.shared_reduce_s
        late_s = np.zeros_like(forward_s)
        np.subtract(reduce_s, backward_s, out=late_s, where=np.isfinite(forward_s))
        return forward_s, backward_s, np.maximum(late_s, 0.0), _updates_s(self)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Stages:
    """[first, last] → seconds of a stage of those layers: forward and backward, each
    alone, what its reduction is late, and its update; infinite where it cannot be. Of
    several options [option, first, last]."""

    both_s: Array
    forward_s: Array
    backward_s: Array
    late_s: Array
    update_s: Array

    @classmethod
    def of(
        cls, options: Sequence[Option], passes: Sequence[Passes], tied_s: float = 0.0
    ) -> Stages:
        """Those of each of the *options*, with its *passes*; what ends take on top of
        updates, *tied_s*, is no update of others."""
        forward_s, backward_s, late_s, update_s = (
            np.array(each)
            for each in zip(*(one.stages_s for one in passes), strict=True)
        )
        for each_s in (forward_s, backward_s):
            each_s[[not one.starts for one in options], 0] = np.inf
            each_s[[not one.ends for one in options], :, -1] = np.inf
        update_s[:, 1:, :-1] = without_tied_s(update_s[:, 1:, :-1], tied_s)
        return cls(
            both_s=forward_s + backward_s,
            forward_s=forward_s,
            backward_s=backward_s,
            late_s=late_s,
            update_s=update_s,
        )

    @property
    def is_late(self) -> bool:
        """Whether the reduction of any of them is."""
        return bool(np.any((self.late_s > 0) & np.isfinite(self.both_s)))

    def late_where(self, fits: Array) -> list[bool]:
        """The same of each option, of those that *fit*."""
        ever = np.asarray((self.late_s > 0).any(axis=(-2, -1)))
        return [
            late and bool(np.any((late_s > 0) & fit & np.isfinite(both_s)))
            for late, late_s, fit, both_s in zip(
                ever, self.late_s, fits, self.both_s, strict=True
            )
        ]

    def least(self, options: Sequence[int], fits: Array) -> Stages:
        """What none of those *options* goes below where it *fits*."""

        def lowest(values: Array) -> Array:
            found = np.full(values.shape[1:], np.inf)
            for number in options:
                np.minimum(found, values[number], out=found, where=fits[number])
            return found

        chosen = list(options)
        return Stages(
            both_s=lowest(self.both_s),
            forward_s=lowest(self.forward_s),
            backward_s=lowest(self.backward_s),
            late_s=self.late_s[chosen].min(axis=0),
            update_s=self.update_s[chosen].min(axis=0),
        )

    def beats(self, other: Stages) -> bool:
        """Whether it takes no longer, whatever the layers."""
        return bool(
            (self.both_s <= other.both_s).all()
            and (self.forward_s <= other.forward_s).all()
            and (self.backward_s <= other.backward_s).all()
            and (self.late_s <= other.late_s).all()
            and (self.update_s <= other.update_s).all()
        )


def without_tied_s(update_s: Array, tied_s: float) -> Array:
    """Updates of stages that are no end, beyond what ends take for a tied table."""
    return np.maximum(update_s - tied_s, 0.0)


def _updates_s(passes: Passes) -> Array:
    """[first, last] → seconds of the update of a stage; 0 where there is none."""
    names = "forward_s", "backward_s", "reduce_s", "step_s", "gather_s", "messages"
    layers = np.array([getattr(passes, name) for name in names])
    sums = np.triu(_sums(layers))
    forward_s, backward_s, reduce_s, step_s, gather_s, messages = sums
    run = np.maximum(np.triu(_sums((layers[0] > 0) * passes.layers)), 1)
    for known, shared_s in (
        (backward_s, passes.shared_backward_s),
        (reduce_s, passes.shared_reduce_s),
        (step_s, passes.shared_step_s),
        (gather_s, passes.shared_gather_s),
        (messages, passes.shared_messages),
    ):
        known[0, -1] -= shared_s
    found = step_s + exposed_s(
        gather_s,
        forward_s,
        run,
        overlapped=passes.hides_gathers,
        contention=passes.contention,
    )
    if passes.hides_reductions:
        tail_s = reduce_tail_s(
            reduce_s, backward_s, buckets=np.maximum(messages, 1), overlap=True
        )
        found += passes.contention * (reduce_s - tail_s)
    return np.asarray(found)


def _sums(values: Array) -> Array:
    """[…, first, last] → the sum between; of no use where last is before first."""
    ends = np.cumsum(values, axis=-1)
    return np.asarray(ends[..., None, :] - (ends - values)[..., None])


def gathered(
    kinds: Sequence[Kind], passes: Sequence[Passes], stages: Stages, fits: Array
) -> dict[Kind, tuple[Stages, ...]]:
    """Of each kind what those of its options' *stages* that *fit* do not go below: one
    for all that reduce in time, one for each way to reduce that may be late, but for
    those that another beats."""
    by_way: dict[Kind, dict[bytes, list[int]]] = {}
    late = stages.late_where(fits)
    for number, (kind, each) in enumerate(zip(kinds, passes, strict=True)):
        way = each.reduce_s.tobytes() if late[number] else b""
        by_way.setdefault(kind, {}).setdefault(way, []).append(number)
    return {
        kind: _unbeaten([stages.least(options, fits) for options in ways.values()])
        for kind, ways in by_way.items()
    }


def _unbeaten(several: Sequence[Stages]) -> tuple[Stages, ...]:
    kept: list[Stages] = []
    for one in several:
        if not any(other.beats(one) for other in kept):
            kept = [other for other in kept if not one.beats(other)] + [one]
    return tuple(kept)


MOST_CUT: Final = 128  # layers that are cut one by one over islands
GROUPS: Final = 64  # of more


def group_size(layers: int) -> int:
    """How many neighbours are one: 1 of layers that are not too many."""
    return 1 if layers <= MOST_CUT else ceil(layers / GROUPS)


def grouped_option(option: Option, size: int) -> Option:
    """*option* of groups of so many layers."""
    starts = _starts(option.seconds, size)
    return replace(
        option,
        seconds=np.add.reduceat(option.seconds, starts),
        saved_bytes=np.add.reduceat(option.saved_bytes, starts),
        state_bytes=np.add.reduceat(option.state_bytes, starts),
        working_bytes=np.maximum.reduceat(option.working_bytes, starts),
    )


def grouped_passes(passes: Passes, size: int) -> Passes:
    """*passes* of groups of so many layers."""
    starts = _starts(passes.forward_s, size)
    return replace(
        passes,
        forward_s=np.add.reduceat(passes.forward_s, starts),
        backward_s=np.add.reduceat(passes.backward_s, starts),
        reduce_s=np.add.reduceat(passes.reduce_s, starts),
        step_s=np.add.reduceat(passes.step_s, starts),
        gather_s=np.add.reduceat(passes.gather_s, starts),
        messages=np.add.reduceat(passes.messages, starts),
        layers=np.add.reduceat(np.ones(len(passes.forward_s)), starts),
    )


def _starts(layers: Array, size: int) -> Array:
    return np.arange(0, len(layers), size)


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
    prices = [pricer.columns()[alike] for pricer in pricers]
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
    apart = sharded_experts(parallel, on.framework, layout.offload)
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
    hides = "param" in on.framework.overlap.hidden
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
        hides_reductions=bool(hides_gradients(on.framework, stage.mesh.tp)),
        contention=on.framework.overlap.contention,
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
