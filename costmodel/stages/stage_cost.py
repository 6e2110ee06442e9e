"""Seconds and bytes of one pipeline stage: its blocks, and its data parallelism.

Written once for a stage of a layout (counts are numbers) and for columns of
candidates (counts and atoms are arrays): the two agree because they are the same.

What a stage holds on one rank, before memory adds it up: no seconds in it.

Most candidates are ruled out by their memory alone, so columns ask for this first.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import numpy as np

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
    exchanges,
    exposed_s,
    messages_of,
    sharded_experts,
    summed_s,
)
from costmodel.stages.fsdp_units import unit_work
from costmodel.stages.offload_cost import (
    NO_WAITS,
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
    weights, by_units = contents.weight_bytes, machine.software.fully_shard
    habits = machine.software.footprint
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
    total, layers = contents.total, contents.layers
    parameters, frozen = total.parameters, total.frozen_parameters
    overlap = machine.software.overlap
    behind = hides_gradients(machine.software, parallel.tp)
    sync = exchanges(
        parameters,
        parallel,
        precision,
        machine,
        units=layers,
        frozen=frozen,
        offload=offload,
    )
    accumulate_s = accumulated(
        parameters, parallel, precision, machine, frozen=frozen
    ).seconds
    own = unit_work(parameters, parallel, precision, machine, units=layers)
    step_s = updated(parameters, parallel, precision, machine, optimizer).seconds
    experts = total.expert_parameters
    apart = sharded_experts(parallel, machine.software, offload)
    mixed = bool(np.any(experts))
    if mixed:
        held = experts > 0  # a stage without experts has nothing to launch for them
        more = exchanges(
            experts, apart, precision, machine, units=layers, offload=offload
        )
        sync = sync + more.where(held)
        added = accumulated(experts, apart, precision, machine).where(held)
        stepped = updated(experts, apart, precision, machine, optimizer).where(held)
        accumulate_s = accumulate_s + added.seconds
        step_s = step_s + stepped.seconds
        beside = unit_work(experts, apart, precision, machine, units=layers)
        own = own + beside.where(held)
    accumulate_s = accumulate_s + own.backward.seconds
    reduce_s = machine.once_a_step(sync.step_reduce).seconds
    backward_compute = total.recompute_s + total.backward_s + accumulate_s
    forward_exposed = exposed_s(
        sync.forward_gather.seconds,
        total.forward_s,
        layers,
        overlapped="param" in overlap,
        contention=machine.software.contention,
    )
    backward_exposed = exposed_s(
        (sync.backward_gather + sync.backward_reduce).seconds,
        backward_compute,
        layers,
        overlapped=behind,
        contention=machine.software.contention,
    )
    forward_s = total.forward_s + forward_exposed + own.forward.seconds
    backward_s = backward_compute + backward_exposed
    copies = NO_WAITS
    if offload.states or np.any(total.away_bytes):
        each = shard_bytes(precision, machine)
        copies = waits(
            saved_away_bytes=total.away_bytes,
            weight_bytes=(parameters * each + frozen * precision.frozen_bytes)
            / parallel.shards
            + experts * each / apart.shards,
            gradient_bytes=precision.gradient.bytes
            * (parameters / parallel.shards + experts / apart.shards),
            forward_s=forward_s,
            backward_s=backward_s,
            parallel=parallel,
            offload=offload,
            machine=machine,
            micro_batches=np.asarray(micro_batches),
        )
    step_copies_s: Array = np.zeros(())
    summed_away: Array = np.zeros(())
    if offload.optimizer:
        step_s, step_copies_s = np.zeros(()), np.zeros(())
        sides = [(parameters, parallel), *([(experts, apart)] if mixed else [])]
        for states, side in sides:
            on_host = host_step(
                states,
                side,
                precision,
                machine,
                optimizer,
                offload=offload,
                backward_s=backward_s,
                layers=parallel,
            )
            step_s = step_s + np.where(states > 0, on_host.seconds, 0.0)
            step_copies_s = step_copies_s + np.where(states > 0, on_host.copies_s, 0.0)
        summed_away = precision.gradient.bytes * summed_where_they_lie(
            parameters,
            experts,
            total.summands + total.tied_parameters,
            parallel=parallel,
            apart=apart,
            offload=offload,
            machine=machine,
        )
        brought_s = there_and_back_s(summed_away, parallel, offload, machine)
        step_s, step_copies_s = step_s + brought_s, step_copies_s + brought_s
    step_s = step_s + own.step.seconds
    gather_s = machine.once_a_step(sync.step_gather).seconds
    if "param" in overlap:  # behind the next step's first forward
        gather_s = exposed_s(
            sync.step_gather.seconds,
            forward_s,
            layers,
            overlapped=True,
            contention=machine.software.contention,
        )
    gather_s = gather_s + machine.once_a_step(sync.step_sum).seconds
    # What the last backward loses to the reduction that it hides.
    buckets = messages_of(parameters + experts, parallel, layers, precision, machine)
    exposed = reduce_tail_s(
        reduce_s,
        backward_s,
        buckets=buckets,
        overlap=behind,
    )
    gather_s = gather_s + machine.software.contention * (reduce_s - exposed)
    if np.any(total.summands):  # once gradients are reduced: nothing hides it
        gather_s = gather_s + summed_s(total.summands, parallel, precision, machine)
    sent = _reduced(sync.backward_reduce, sync.backward_gather)
    trained = np.maximum(parameters + experts, 1)
    late = 1 - contents.early_parameters / trained
    # Where shards have replicas, the table's gradient waits for W.
    late = np.where((parallel.zero >= 2) & (parallel.replicas > 1), 1.0, late)
    holds = stage_bytes(contents, parallel, precision, machine, offload)
    return StagePrice(
        forward_s=forward_s + copies.forward_s,
        backward_s=backward_s + copies.backward_s,
        weight_s=total.weight_s + late * (accumulate_s + backward_exposed * sent),
        recompute_s=total.recompute_s,
        recompute_comm_s=total.recompute_tensor_s
        + total.recompute_context_s
        + total.recompute_expert_s,
        tensor_comm_s=_passes(total, "tensor"),
        context_comm_s=_passes(total, "context"),
        expert_comm_s=_passes(total, "expert"),
        data_comm_s=forward_exposed + backward_exposed,
        offload_s=copies.forward_s + copies.backward_s,
        reduce_s=reduce_s,
        buckets=buckets,
        gather_s=gather_s,
        step_s=step_s,
        step_copies_s=step_copies_s,
        parameters=holds.parameters,
        expert_parameters=holds.expert_parameters,
        frozen_parameters=holds.frozen_parameters,
        saved_bytes=holds.saved_bytes,
        away_bytes=total.away_bytes,
        summed_away_bytes=summed_away,
        weight_bytes=total.weight_bytes,
        forward_working_bytes=holds.forward_working_bytes,
        backward_working_bytes=holds.backward_working_bytes,
        gathered_bytes=holds.gathered_bytes,
        flops=total.flops,
        recompute_flops=total.recompute_flops,
    )


def most_hidden_s(expert_comm_s: Array, backward_s: Array, machine: Machine) -> Array:
    """At most what a backward saves that runs at once with a forward."""
    share = 1 - machine.software.contention
    return np.asarray(share * np.minimum(expert_comm_s, backward_s))


def _reduced(reduce: Sourced, gather: Sourced) -> Array:
    """The share of a backward's exchanges that sends gradients."""
    both: Array = reduce.seconds + gather.seconds
    return np.where(both > 0, reduce.seconds / np.where(both > 0, both, 1.0), 0.0)


def _passes(total: Atom, kind: str) -> Array:
    passes = (f"{part}_{kind}_s" for part in ("forward", "recompute", "backward"))
    return np.asarray(sum(getattr(total, name) for name in passes))
