"""Seconds and bytes of one pipeline stage: its blocks, and its data parallelism.

Written once for a stage of a layout (counts are numbers) and for columns of
candidates (counts and atoms are arrays): the two agree because they are the same.

Most candidates are ruled out by their memory alone: columns ask for bytes first.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from functools import cached_property
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
    Exchanges,
    copied_out_s,
    exchanges,
    exposed_s,
    messages_of,
    sharded_experts,
    summed_s,
)
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
from costmodel.stages.optimizer_step import UnitWork, accumulated, unit_work, updated
from costmodel.timeline import reduce_tail_s
from profiles.arrays import Array, Arrays
from profiles.hardware import Precision

WIDEST_WEIGHT = 3  # a GPT layer's 12·h² parameters are in matrices of up to 4·h²


@dataclass(frozen=True, slots=True, kw_only=True)
class StageBytes(Arrays):
    """What a rank of a stage holds of parameters, and of one micro-batch."""

    parameters: Array  # that are trained, but for those of experts
    expert_parameters: Array  # that are trained
    frozen_parameters: Array
    saved_bytes: Array
    weight_bytes: Array  # what gradients of weights are made of
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
        weight_bytes=total.weight_bytes,
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
    whole = whole + contents.dummy_bytes
    if not by_units and not offload.optimizer:
        return whole
    made = contents.unit_parameters if by_units else contents.trained_parameters
    sent = 2 * made * precision.gradient_bytes
    if by_units and shares_cores(machine.device):
        sent = contents.sending_bytes
    shards = np.where(offload.optimizer, 2, parallel.shards)  # the host is one more
    return whole + np.where((parallel.zero >= 2) & (shards > 1), sent, 0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class StagePrice(StageBytes):
    """One micro-batch through a stage, and its share of the step's end.

    `forward_s` and `backward_s` are whole passes: compute, recompute, exposed tensor,
    context and data communication, copies that are not hidden; the parts are those of
    the two passes together, `forward_…` of the first. `weight_s` of `backward_s` makes
    the gradients of weights, from `weight_bytes`: what a schedule may put off.
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
    forward_tensor_comm_s: Array
    forward_context_comm_s: Array
    forward_expert_comm_s: Array
    forward_data_comm_s: Array
    forward_offload_s: Array
    reduce_s: Array
    buckets: Array  # in which gradients are reduced
    gather_s: Array  # once a step: parameters; and what hiding a reduction costs
    step_s: Array
    step_copies_s: Array  # what of it an offloaded optimizer's copies take
    away_bytes: Array  # offloaded between forward and backward
    summed_away_bytes: Array  # gradients that are summed once more where they are away
    flops: Array
    recompute_flops: Array

    @property
    def trained_parameters(self) -> Array:
        return np.asarray(self.parameters + self.expert_parameters)


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
    total, copies = contents.total, stage.copies
    step_s, step_copies_s, summed_away_bytes = stage.step
    holds = stage_bytes(contents, parallel, precision, machine, offload)
    return StagePrice(
        forward_s=stage.forward_s + copies.forward_s,
        backward_s=stage.backward_s + copies.backward_s,
        weight_s=stage.weight_s,
        recompute_s=total.recompute_s,
        recompute_comm_s=total.recompute_tensor_s
        + total.recompute_context_s
        + total.recompute_expert_s,
        tensor_comm_s=_communication_s(total, "tensor"),
        context_comm_s=_communication_s(total, "context"),
        expert_comm_s=_communication_s(total, "expert"),
        data_comm_s=stage.forward_exposed_s + stage.backward_exposed_s,
        offload_s=copies.forward_s + copies.backward_s,
        forward_tensor_comm_s=total.forward_tensor_s,
        forward_context_comm_s=total.forward_context_s,
        forward_expert_comm_s=total.forward_expert_s,
        forward_data_comm_s=stage.forward_exposed_s,
        forward_offload_s=copies.forward_s,
        reduce_s=stage.reduce_s,
        buckets=stage.buckets,
        gather_s=stage.gather_s,
        step_s=step_s,
        step_copies_s=step_copies_s,
        away_bytes=total.away_bytes,
        summed_away_bytes=summed_away_bytes,
        flops=total.flops,
        recompute_flops=total.recompute_flops,
        **{item.name: getattr(holds, item.name) for item in fields(holds)},
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _StateWork(Arrays):
    """What becomes of a stage's parameters and gradients beside its products."""

    sync: Exchanges
    accumulated: Sourced  # gradients of a micro-batch
    updated: Sourced  # by an optimizer on the device
    units: UnitWork


@dataclass(frozen=True, kw_only=True)
class _Stage:
    """A stage that is priced, each part of its price made when it is first asked for;
    `apart` is the data parallelism of its experts."""

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

    @cached_property
    def states(self) -> _StateWork:
        """Of the stage's own parameters and, where it has any, of its experts'."""
        total = self.total
        found = self._states(total.parameters, self.parallel, total.frozen_parameters)
        if np.any(total.reused_parameters):
            found = self._used_again(found)
        if not np.any(total.expert_parameters):
            return found
        experts = self._states(total.expert_parameters, self.apart)
        # Without any there is nothing to launch.
        return found + experts.where(total.expert_parameters > 0)

    def _used_again(self, once: _StateWork) -> _StateWork:
        """What layers that share their parameters do in every one of them: gather
        them, add their gradients up and, where those are sharded, send them."""
        total = self.total
        used = total.parameters + total.reused_parameters
        every = self._states(used, self.parallel, total.frozen_parameters)
        names = ("forward_gather", "backward_gather", "backward_reduce")
        sync = replace(once.sync, **{name: getattr(every.sync, name) for name in names})
        return replace(once, sync=sync, accumulated=every.accumulated)

    def _states(
        self, parameters: Array, parallel: DataParallel, frozen: Any = 0.0
    ) -> _StateWork:
        """Of *parameters* that are sharded as *parallel* says."""
        side = parameters, parallel, self.precision, self.machine
        layers = self.contents.layers
        return _StateWork(
            sync=exchanges(*side, units=layers, frozen=frozen, offload=self.offload),
            accumulated=accumulated(*side, frozen=frozen),
            updated=updated(*side, self.optimizer),
            units=unit_work(*side, units=layers),
        )

    @cached_property
    def accumulate_s(self) -> Array:
        """Gradients of a backward, with hooks and copies of units."""
        states = self.states
        return np.asarray(states.accumulated.seconds + states.units.backward.seconds)

    @cached_property
    def _hides_gradients(self) -> Array:
        """Where a reduction lies behind the backward."""
        tp, zero = self.parallel.tp, self.parallel.zero
        return hides_gradients(self.machine.framework, tp, zero)

    def _exposed_s(self, sent_s: Array, compute_s: Array, overlapped: Any) -> Array:
        """What of a pass's communication its compute does not hide."""
        return exposed_s(
            sent_s,
            compute_s,
            self.contents.layers,
            overlapped=overlapped,
            contention=self.machine.framework.overlap.contention,
        )

    @cached_property
    def forward_exposed_s(self) -> Array:
        """Data parallelism's exchanges in a forward that it does not hide."""
        gather, overlap = (
            self.states.sync.forward_gather,
            self.machine.framework.overlap.hidden,
        )
        return self._exposed_s(gather.seconds, self.total.forward_s, "param" in overlap)

    @cached_property
    def backward_exposed_s(self) -> Array:
        """The same of a backward."""
        sync = self.states.sync
        sent_s = (sync.backward_gather + sync.backward_reduce).seconds
        return self._exposed_s(sent_s, self._backward_compute_s, self._hides_gradients)

    @property
    def _backward_compute_s(self) -> Array:
        total = self.total
        return np.asarray(total.recompute_s + total.backward_s + self.accumulate_s)

    @cached_property
    def forward_s(self) -> Array:
        """A micro-batch's forward before it waits for copies."""
        unit_s = self.states.units.forward.seconds
        return np.asarray(self.total.forward_s + self.forward_exposed_s + unit_s)

    @cached_property
    def backward_s(self) -> Array:
        """The same of its backward."""
        return np.asarray(self._backward_compute_s + self.backward_exposed_s)

    @cached_property
    def copies(self) -> Waits:
        """What the passes wait for of what is offloaded."""
        total, precision = self.total, self.precision
        if not (self.offload.states or np.any(total.away_bytes)):
            return NO_WAITS
        own, experts = self.parallel.shards, self.apart.shards
        each = shard_bytes(precision, self.machine)
        frozen = total.frozen_parameters * precision.frozen_bytes
        weights = total.parameters * each + frozen
        gradients = total.parameters / own + total.expert_parameters / experts
        return waits(
            Moved(
                saved_bytes=total.away_bytes,
                weight_bytes=weights / own + total.expert_parameters * each / experts,
                gradient_bytes=precision.gradient.bytes * gradients,
            ),
            forward_s=self.forward_s,
            backward_s=self.backward_s,
            parallel=self.parallel,
            offload=self.offload,
            machine=self.machine,
            micro_batches=np.asarray(self.micro_batches),
        )

    @property
    def step(self) -> tuple[Array, Array, Array]:
        """Seconds of the optimizer's step, on the device or, where it is offloaded, on
        the host; what of them are copies; and the bytes of gradients that are summed
        once more where they are away."""
        unit_s = self.states.units.step.seconds
        if not self.offload.optimizer:
            return self.states.updated.seconds + unit_s, np.zeros(()), np.zeros(())
        total, parallel, machine = self.total, self.parallel, self.machine
        step_s: Array = np.zeros(())
        copies_s: Array = np.zeros(())
        sides = [(total.parameters, parallel), (total.expert_parameters, self.apart)]
        for held, side in sides[: 1 + bool(np.any(total.expert_parameters))]:
            on_host = host_step(
                held,
                side,
                self.precision,
                machine,
                self.optimizer,
                offload=self.offload,
                backward_s=self.backward_s,
                layers=parallel,
            )
            step_s = step_s + np.where(held > 0, on_host.seconds, 0.0)
            copies_s = copies_s + np.where(held > 0, on_host.copies_s, 0.0)
        summed_away = self.precision.gradient.bytes * summed_where_they_lie(
            total.parameters,
            total.expert_parameters,
            total.summands + total.tied_parameters,
            parallel=parallel,
            apart=self.apart,
            offload=self.offload,
            machine=machine,
        )
        brought_s = there_and_back_s(summed_away, parallel, self.offload, machine)
        return step_s + brought_s + unit_s, copies_s + brought_s, summed_away

    @cached_property
    def reduce_s(self) -> Array:
        """Gradients, once a step."""
        sent = self.states.sync.step_reduce
        return np.asarray(self.machine.once_a_step(sent).seconds)

    @cached_property
    def buckets(self) -> Array:
        layers, side = self.contents.layers, (self.precision, self.machine)
        return messages_of(self.total.trained, self.parallel, layers, *side)

    @property
    def gather_s(self) -> Array:
        """Once a step: parameters, what the last backward loses to the reduction that
        it hides, and summands over tp."""
        total, machine, sync = self.total, self.machine, self.states.sync
        gather_s = machine.once_a_step(sync.step_gather).seconds
        gather_s = gather_s + copied_out_s(
            self.contents.layers, self.parallel, machine.framework
        )
        if (
            "param" in machine.framework.overlap.hidden
        ):  # behind the next step's first forward
            gather_s = self._exposed_s(sync.step_gather.seconds, self.forward_s, True)
        gather_s = gather_s + machine.once_a_step(sync.step_sum).seconds
        exposed = reduce_tail_s(
            self.reduce_s,
            self.backward_s,
            buckets=self.buckets,
            overlap=self._hides_gradients,
        )
        gather_s = gather_s + machine.framework.overlap.contention * (
            self.reduce_s - exposed
        )
        if not np.any(total.summands):
            return np.asarray(gather_s)
        # Once gradients are reduced: nothing hides it.
        summed = summed_s(total.summands, self.parallel, self.precision, machine)
        return np.asarray(gather_s + summed)

    @property
    def weight_s(self) -> Array:
        """What of the backward makes gradients of weights, adds up and sends them."""
        parallel, sync, total = self.parallel, self.states.sync, self.total
        reduce_s = sync.backward_reduce.seconds
        both_s = reduce_s + sync.backward_gather.seconds
        sent = np.where(both_s > 0, reduce_s / np.where(both_s > 0, both_s, 1.0), 0.0)
        late = 1 - self.contents.early_parameters / np.maximum(total.trained, 1)
        # Where shards have replicas, the table's gradient waits for W.
        late = np.where((parallel.zero >= 2) & (parallel.replicas > 1), 1.0, late)
        put_off_s = self.accumulate_s + self.backward_exposed_s * sent
        return np.asarray(total.weight_s + late * put_off_s)


def most_hidden_s(expert_comm_s: Array, backward_s: Array, machine: Machine) -> Array:
    """At most what a backward saves that runs at once with a forward."""
    share = 1 - machine.framework.overlap.contention
    return np.asarray(share * np.minimum(expert_comm_s, backward_s))


def _communication_s(total: Atom, kind: str) -> Array:
    passes = (f"{part}_{kind}_s" for part in ("forward", "recompute", "backward"))
    return np.asarray(sum(getattr(total, name) for name in passes))
