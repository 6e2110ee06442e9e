"""Seconds and bytes of one pipeline stage: its blocks, and its data parallelism.

Written once for a stage of a layout (counts are numbers) and for columns of
candidates (counts and atoms are arrays): the two agree because they are the same.

What a stage holds on one rank, before memory adds it up: no seconds in it.

Most candidates are ruled out by their memory alone, so columns ask for this first.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from costmodel.layout import NOTHING, Offload
from costmodel.machine import (
    INT4_BYTES,
    INT8_BYTES,
    Machine,
    Sourced,
    hides_gradients,
    shares_cores,
)
from costmodel.stages.block_cost import Atom
from costmodel.stages.contents import Contents
from costmodel.stages.data_parallelism import (
    DataParallel,
    Exchanges,
    exchanges,
    exposed_s,
    messages_of,
    sharded_experts,
    summed_s,
)
from costmodel.stages.fsdp_units import UnitWork, unit_work
from costmodel.stages.offload_cost import (
    NO_WAITS,
    Moved,
    Waits,
    host_step,
    shard_bytes,
    summed_where_they_lie,
    there_and_back_s,
    waits,
)
from costmodel.stages.optimizer_step import accumulated, updated
from costmodel.timeline import reduce_tail_s
from profiles.arrays import Array
from profiles.hardware import Precision

WIDEST_WEIGHT = 3  # a GPT layer's 12·h² parameters are in matrices of up to 4·h²


@dataclass(frozen=True, slots=True, kw_only=True)
class StageBytes:
    """Parameters of a stage and bytes of one micro-batch, as in `StagePrice`."""

    parameters: Array  # that are trained, but for those of experts
    expert_parameters: Array  # that are trained
    frozen_parameters: Array
    saved_bytes: Array
    forward_working_bytes: Array
    backward_working_bytes: Array
    gathered_bytes: Array  # parameters that ZeRO-3 holds unsharded at a time


def stage_bytes(
    contents: Contents,
    parallel: DataParallel,
    precision: Precision,
    machine: Machine,
    offload: Offload = NOTHING,
) -> StageBytes:
    """What a rank of a stage with *contents* holds; *offload* says where states are."""
    total = contents.total
    buffer: Array = np.zeros(())
    forward, backward = total.forward_working_bytes, total.backward_working_bytes
    if shares_cores(machine.device):  # copies are of the drive, in no memory of a rank
        forward = np.maximum(forward, contents.leaving_bytes)
        backward = np.maximum(backward, contents.leaving_bytes)
    elif offload.states or np.any(total.away_bytes):
        # One layer's copies are under way while the next one is at work.
        buffer = np.minimum(2 * contents.away_bytes, total.away_bytes)
    return StageBytes(
        parameters=total.parameters,
        expert_parameters=total.expert_parameters,
        frozen_parameters=total.frozen_parameters,
        saved_bytes=total.saved_bytes,
        forward_working_bytes=forward + buffer,
        backward_working_bytes=backward + buffer,
        gathered_bytes=_gathered(contents, parallel, precision, machine, offload),
    )


def _blocks(contents: Contents, parallel: DataParallel, machine: Machine) -> Array:
    """A layer's weights as ZeRO++ gathers them, before they are numbers; or its
    gradients, as they are sent and as others' come, which are as many bytes."""
    reduced = parallel.reduces_blocks(parallel.shard_group(machine))
    here = np.where(parallel.gathers_blocks, INT8_BYTES, 0.0)
    here = np.maximum(here, np.where(reduced, 2 * INT4_BYTES, 0.0))
    return np.asarray(contents.trained_parameters * here)


def _gathered(
    contents: Contents,
    parallel: DataParallel,
    precision: Precision,
    machine: Machine,
    offload: Offload,
) -> Array:
    """What is whole of layers that are sharded: ZeRO-3's parameters, of the layer in
    use and the one prefetched, or of a segment that is made again (`fully_shard` lets
    go of none in a backward before its gradients are made), and of a table that is the
    head too; and, as `fully_shard` does it and where the optimizer is offloaded, from
    ZeRO-2 on the gradient of a layer, as made and as it is sent. A GPU sends it behind
    the next layer's backward; a CPU waits, when what the layer saved is let go."""
    weights, by_units = contents.weight_bytes, machine.framework.fully_shard
    habits = machine.framework.footprint
    whole = 2 * weights
    if by_units:
        layers = np.maximum(contents.pair_bytes, contents.segment_bytes)
        whole = layers + contents.root_bytes
    if habits.live_parameters is not None:  # the widest weight of a layer, and those
        live = habits.live_parameters * precision.parameter.bytes
        whole = np.minimum(whole, live + weights / WIDEST_WEIGHT)
    whole = np.where(parallel.zero == 3, whole, 0.0)
    if parallel.has_zero_plus:
        whole = whole + _blocks(contents, parallel, machine)
    if habits.dummy_gradients:
        whole = whole + contents.parameters * precision.activation.bytes
    if not by_units and not offload.optimizer:
        return whole
    made = contents.unit_parameters if by_units else contents.trained_parameters
    sent = 2 * made * precision.gradient_bytes
    if by_units and shares_cores(machine.device):
        sent = contents.sending_bytes
    shards = np.where(offload.optimizer, 2, parallel.shards)  # the host is one more
    return whole + np.where((parallel.zero >= 2) & (shards > 1), sent, 0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class StagePrice:
    """One micro-batch through a stage, and its share of the step's end.

    `forward_s` and `backward_s` are whole passes: compute, recompute, exposed tensor,
    context and data communication, copies that are not hidden; the parts are those of
    the two passes together. `weight_s` of `backward_s` makes the gradients of weights,
    from `weight_bytes`: what a schedule may put off.
    """

    forward_s: Array
    backward_s: Array
    weight_s: Array
    recompute_s: Array
    recompute_comm_s: Array  # what of it is tensor, context and expert communication
    tensor_comm_s: Array
    context_comm_s: Array
    expert_comm_s: Array
    data_comm_s: Array
    offload_s: Array
    reduce_s: Array
    buckets: Array  # in which gradients are reduced
    gather_s: Array  # once a step: parameters; and what hiding a reduction costs
    step_s: Array
    step_copies_s: Array  # what of it an offloaded optimizer's copies take
    parameters: Array  # that are trained, but for those of experts
    expert_parameters: Array  # that are trained
    frozen_parameters: Array
    saved_bytes: Array
    away_bytes: Array  # offloaded between forward and backward
    summed_away_bytes: Array  # gradients that are summed once more where they are away
    weight_bytes: Array
    forward_working_bytes: Array
    backward_working_bytes: Array
    gathered_bytes: Array  # parameters that ZeRO-3 holds unsharded at a time
    flops: Array
    recompute_flops: Array

    @property
    def trained_parameters(self) -> Array:
        return np.asarray(self.parameters + self.expert_parameters)

    def take(self, index: Array) -> StagePrice:
        """The stages at *index*, for every field."""
        return StagePrice(
            **{item.name: getattr(self, item.name)[index] for item in fields(self)}
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Stage:
    """A stage that is priced; `apart` is the data parallelism of its experts."""

    contents: Contents
    parallel: DataParallel
    apart: DataParallel
    precision: Precision
    machine: Machine
    optimizer: str
    offload: Offload
    micro_batches: Any

    @property
    def total(self) -> Atom:
        return self.contents.total

    @property
    def trained(self) -> Array:
        return np.asarray(self.total.parameters + self.total.expert_parameters)

    @property
    def has_experts(self) -> bool:
        """Whether this stage, or any of many, has some."""
        return bool(np.any(self.total.expert_parameters))

    @property
    def hides_gradients(self) -> Array:
        """Where a reduction lies behind the backward."""
        return hides_gradients(self.machine.framework, self.parallel.tp)

    def exposed_s(
        self, communication_s: Array, compute_s: Array, *, overlapped: ArrayLike
    ) -> Array:
        """What of a pass's communication its compute does not hide."""
        return exposed_s(
            communication_s,
            compute_s,
            self.contents.layers,
            overlapped=overlapped,
            contention=self.machine.framework.overlap.contention,
        )


def stage_price(
    contents: Contents,
    parallel: DataParallel,
    precision: Precision,
    machine: Machine,
    optimizer: str,
    offload: Offload = NOTHING,
    micro_batches: Any = 1,
) -> StagePrice:
    """Price a stage that holds *contents*, for one rank of it; *optimizer* by name.

    *offload* says where states are; what leaves of the activations is in the atoms. Of
    gradients on drives it counts how many *micro_batches* a rank of the stage has.
    """
    stage = _Stage(
        contents=contents,
        parallel=parallel,
        apart=sharded_experts(parallel, machine.framework, offload),
        precision=precision,
        machine=machine,
        optimizer=optimizer,
        offload=offload,
        micro_batches=micro_batches,
    )
    total, states = contents.total, _state_work(stage)
    passes = _passes(stage, states)
    copies = _copies(stage, passes)
    step = _step(stage, states, passes)
    reduction = _reduction(stage, states, passes)
    holds = stage_bytes(contents, parallel, precision, machine, offload)
    return StagePrice(
        forward_s=passes.forward_s + copies.forward_s,
        backward_s=passes.backward_s + copies.backward_s,
        weight_s=_weight_s(stage, states, passes),
        recompute_s=total.recompute_s,
        recompute_comm_s=total.recompute_tensor_s
        + total.recompute_context_s
        + total.recompute_expert_s,
        tensor_comm_s=_communication_s(total, "tensor"),
        context_comm_s=_communication_s(total, "context"),
        expert_comm_s=_communication_s(total, "expert"),
        data_comm_s=passes.forward_exposed_s + passes.backward_exposed_s,
        offload_s=copies.forward_s + copies.backward_s,
        reduce_s=reduction.reduce_s,
        buckets=reduction.buckets,
        gather_s=reduction.gather_s,
        step_s=step.seconds,
        step_copies_s=step.copies_s,
        away_bytes=total.away_bytes,
        summed_away_bytes=step.summed_away_bytes,
        weight_bytes=total.weight_bytes,
        flops=total.flops,
        recompute_flops=total.recompute_flops,
        **{item.name: getattr(holds, item.name) for item in fields(holds)},
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _StateWork:
    """What becomes of a stage's parameters and gradients beside its products."""

    sync: Exchanges
    accumulated: Sourced  # gradients of a micro-batch
    updated: Sourced  # by an optimizer on the device
    units: UnitWork

    @property
    def accumulate_s(self) -> Array:
        """Seconds of a backward, hooks and copies of units with them."""
        return np.asarray(self.accumulated.seconds + self.units.backward.seconds)

    def __add__(self, other: _StateWork) -> _StateWork:
        return _StateWork(
            sync=self.sync + other.sync,
            accumulated=self.accumulated + other.accumulated,
            updated=self.updated + other.updated,
            units=self.units + other.units,
        )

    def where(self, condition: Any) -> _StateWork:
        """This work where *condition* holds, else none."""
        return _StateWork(
            sync=self.sync.where(condition),
            accumulated=self.accumulated.where(condition),
            updated=self.updated.where(condition),
            units=self.units.where(condition),
        )


def _state_work(stage: _Stage) -> _StateWork:
    """Of the stage's own parameters and, where it has any, of its experts'."""
    total = stage.total
    found = _state_work_of(
        stage, total.parameters, stage.parallel, total.frozen_parameters
    )
    if not stage.has_experts:
        return found
    held = total.expert_parameters > 0  # without any there is nothing to launch
    return found + _state_work_of(stage, total.expert_parameters, stage.apart).where(
        held
    )


def _state_work_of(
    stage: _Stage, parameters: Array, parallel: DataParallel, frozen: Any = 0.0
) -> _StateWork:
    """Of *parameters* that are sharded as *parallel* says."""
    side = parameters, parallel, stage.precision, stage.machine
    layers = stage.contents.layers
    return _StateWork(
        sync=exchanges(*side, units=layers, frozen=frozen, offload=stage.offload),
        accumulated=accumulated(*side, frozen=frozen),
        updated=updated(*side, stage.optimizer),
        units=unit_work(*side, units=layers),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Passes:
    """Seconds of a micro-batch's passes before they wait for copies; `*_exposed_s` is
    what of them data parallelism's exchanges take."""

    forward_s: Array
    backward_s: Array
    forward_exposed_s: Array
    backward_exposed_s: Array


def _passes(stage: _Stage, states: _StateWork) -> _Passes:
    total, sync = stage.total, states.sync
    backward_compute = total.recompute_s + total.backward_s + states.accumulate_s
    forward_exposed = stage.exposed_s(
        sync.forward_gather.seconds,
        total.forward_s,
        overlapped="param" in stage.machine.framework.overlap.hidden,
    )
    backward_exposed = stage.exposed_s(
        (sync.backward_gather + sync.backward_reduce).seconds,
        backward_compute,
        overlapped=stage.hides_gradients,
    )
    return _Passes(
        forward_s=total.forward_s + forward_exposed + states.units.forward.seconds,
        backward_s=backward_compute + backward_exposed,
        forward_exposed_s=forward_exposed,
        backward_exposed_s=backward_exposed,
    )


def _copies(stage: _Stage, passes: _Passes) -> Waits:
    """What the passes wait for of what is offloaded."""
    total, precision = stage.total, stage.precision
    if not (stage.offload.states or np.any(total.away_bytes)):
        return NO_WAITS
    own, experts = stage.parallel.shards, stage.apart.shards
    each = shard_bytes(precision, stage.machine)
    weights = total.parameters * each + total.frozen_parameters * precision.frozen_bytes
    gradients = total.parameters / own + total.expert_parameters / experts
    return waits(
        Moved(
            saved_bytes=total.away_bytes,
            weight_bytes=weights / own + total.expert_parameters * each / experts,
            gradient_bytes=precision.gradient.bytes * gradients,
        ),
        forward_s=passes.forward_s,
        backward_s=passes.backward_s,
        parallel=stage.parallel,
        offload=stage.offload,
        machine=stage.machine,
        micro_batches=np.asarray(stage.micro_batches),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Step:
    """The optimizer's step; `copies_s` of its seconds are copies, also those of
    gradients that are summed once more where they are away."""

    seconds: Array
    copies_s: Array
    summed_away_bytes: Array


def _step(stage: _Stage, states: _StateWork, passes: _Passes) -> _Step:
    """On the device or, where the optimizer is offloaded, on the host."""
    unit_s = states.units.step.seconds
    if not stage.offload.optimizer:
        nothing = np.zeros(())
        return _Step(
            seconds=states.updated.seconds + unit_s,
            copies_s=nothing,
            summed_away_bytes=nothing,
        )
    found = _step_on_host(stage, passes.backward_s)
    return replace(found, seconds=found.seconds + unit_s)


def _step_on_host(stage: _Stage, backward_s: Array) -> _Step:
    total, precision, machine = stage.total, stage.precision, stage.machine
    parallel, apart, offload = stage.parallel, stage.apart, stage.offload
    step_s: Array = np.zeros(())
    copies_s: Array = np.zeros(())
    sides = [(total.parameters, parallel)]
    if stage.has_experts:
        sides.append((total.expert_parameters, apart))
    for states, side in sides:
        on_host = host_step(
            states,
            side,
            precision,
            machine,
            stage.optimizer,
            offload=offload,
            backward_s=backward_s,
            layers=parallel,
        )
        step_s = step_s + np.where(states > 0, on_host.seconds, 0.0)
        copies_s = copies_s + np.where(states > 0, on_host.copies_s, 0.0)
    summed_away = precision.gradient.bytes * summed_where_they_lie(
        total.parameters,
        total.expert_parameters,
        total.summands + total.tied_parameters,
        parallel=parallel,
        apart=apart,
        offload=offload,
        machine=machine,
    )
    brought_s = there_and_back_s(summed_away, parallel, offload, machine)
    return _Step(
        seconds=step_s + brought_s,
        copies_s=copies_s + brought_s,
        summed_away_bytes=summed_away,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Reduction:
    """What is exchanged once a step, as in `StagePrice`."""

    reduce_s: Array
    buckets: Array
    gather_s: Array


def _reduction(stage: _Stage, states: _StateWork, passes: _Passes) -> _Reduction:
    total, sync, machine = stage.total, states.sync, stage.machine
    parallel, precision = stage.parallel, stage.precision
    gather_s = machine.once_a_step(sync.step_gather).seconds
    if (
        "param" in machine.framework.overlap.hidden
    ):  # behind the next step's first forward
        gather_s = stage.exposed_s(
            sync.step_gather.seconds, passes.forward_s, overlapped=True
        )
    gather_s = gather_s + machine.once_a_step(sync.step_sum).seconds
    # What the last backward loses to the reduction that it hides.
    reduce_s = machine.once_a_step(sync.step_reduce).seconds
    layers = stage.contents.layers
    buckets = messages_of(stage.trained, parallel, layers, precision, machine)
    exposed = reduce_tail_s(
        reduce_s, passes.backward_s, buckets=buckets, overlap=stage.hides_gradients
    )
    gather_s = gather_s + machine.framework.overlap.contention * (reduce_s - exposed)
    if np.any(total.summands):  # once gradients are reduced: nothing hides it
        gather_s = gather_s + summed_s(total.summands, parallel, precision, machine)
    return _Reduction(reduce_s=reduce_s, buckets=buckets, gather_s=gather_s)


def _weight_s(stage: _Stage, states: _StateWork, passes: _Passes) -> Array:
    """What of the backward makes gradients of weights, adds them up and sends them."""
    parallel, sync = stage.parallel, states.sync
    sent = _reduced(sync.backward_reduce, sync.backward_gather)
    late = 1 - stage.contents.early_parameters / np.maximum(stage.trained, 1)
    # Where shards have replicas, the table's gradient waits for W.
    late = np.where((parallel.zero >= 2) & (parallel.replicas > 1), 1.0, late)
    put_off_s = states.accumulate_s + passes.backward_exposed_s * sent
    return np.asarray(stage.total.weight_s + late * put_off_s)


def most_hidden_s(expert_comm_s: Array, backward_s: Array, machine: Machine) -> Array:
    """At most what a backward saves that runs at once with a forward."""
    share = 1 - machine.framework.overlap.contention
    return np.asarray(share * np.minimum(expert_comm_s, backward_s))


def _reduced(reduce: Sourced, gather: Sourced) -> Array:
    """The share of a backward's exchanges that sends gradients."""
    both: Array = reduce.seconds + gather.seconds
    return np.where(both > 0, reduce.seconds / np.where(both > 0, both, 1.0), 0.0)


def _communication_s(total: Atom, kind: str) -> Array:
    passes = (f"{part}_{kind}_s" for part in ("forward", "recompute", "backward"))
    return np.asarray(sum(getattr(total, name) for name in passes))
