"""Seconds and bytes of one pipeline stage: its blocks, and its data parallelism.

Written once for a stage of a layout (counts are numbers) and for columns of
candidates (counts and atoms are arrays): the two agree because they are the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from costmodel.atoms import Atom
from costmodel.data_parallel import DataParallel, exchanges, exposed_s
from costmodel.machine import Machine
from costmodel.offload import NOTHING, Offload
from costmodel.offload_price import NO_WAITS, host_step, waits
from costmodel.sourced import Sourced
from costmodel.step_work import accumulated, updated
from profiles.precision import Precision

Array = NDArray[Any]
WIDEST_WEIGHT = 3  # a GPT layer's 12·h² parameters are in matrices of up to 4·h²
Part = tuple[Any, Atom]  # how many of a block (a number or an array), and its price


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
    gather_s: Array
    step_s: Array
    step_copies_s: Array  # what of it an offloaded optimizer's copies take
    parameters: Array  # that are trained, but for those of experts
    expert_parameters: Array  # that are trained
    frozen_parameters: Array
    saved_bytes: Array
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
    parts: Sequence[Part],
    parallel: DataParallel,
    precision: Precision,
    machine: Machine,
    optimizer: str,
    offload: Offload = NOTHING,
    segments: Sequence[Sequence[Part]] = (),
) -> StagePrice:
    """Price a stage that holds *parts*, for one rank of it; *optimizer* by name.

    *offload* says where states are; what leaves of the activations is in the atoms.
    *segments* are those of *parts* that are made again together.
    """
    total = {
        name: _total(parts, name)
        for name in Atom.__dataclass_fields__
        if not name.endswith("working_bytes")
    }
    parameters, frozen = total["parameters"], total["frozen_parameters"]
    layers = np.asarray(sum(np.maximum(count, 0) for count, _ in parts))
    overlap = machine.software.overlap
    sync = exchanges(
        parameters, parallel, precision, machine, units=layers, frozen=frozen
    )
    reduce_s = sync.step_reduce.seconds * machine.software.reduction
    accumulate_s = accumulated(
        parameters, parallel, precision, machine, frozen=frozen
    ).seconds
    step_s = updated(parameters, parallel, precision, machine, optimizer).seconds
    experts, apart = total["expert_parameters"], parallel.of_experts
    mixed = bool(np.any(experts))
    if mixed:
        held = experts > 0  # a stage without experts has nothing to launch for them
        more = exchanges(experts, apart, precision, machine, units=layers)
        sync = sync + more.where(held)
        added = accumulated(experts, apart, precision, machine).where(held)
        stepped = updated(experts, apart, precision, machine, optimizer).where(held)
        accumulate_s = accumulate_s + added.seconds
        step_s = step_s + stepped.seconds
    backward_compute = total["recompute_s"] + total["backward_s"] + accumulate_s
    forward_exposed = exposed_s(
        sync.forward_gather.seconds,
        total["forward_s"],
        layers,
        overlapped="param" in overlap,
        contention=machine.software.contention,
    )
    backward_exposed = exposed_s(
        (sync.backward_gather + sync.backward_reduce).seconds,
        backward_compute,
        layers,
        overlapped="grad" in overlap,
        contention=machine.software.contention,
    )
    forward_s = total["forward_s"] + forward_exposed
    backward_s = backward_compute + backward_exposed
    copies, buffer = NO_WAITS, np.zeros(())
    if offload.states or np.any(total["away_bytes"]):
        copies = waits(
            saved_away_bytes=total["away_bytes"],
            weight_bytes=_weight_bytes(parameters, frozen, precision) / parallel.shards
            + experts * precision.parameter.bytes / apart.shards,
            gradient_bytes=precision.gradient.bytes
            * (parameters / parallel.shards + experts / apart.shards),
            forward_s=forward_s,
            backward_s=backward_s,
            parallel=parallel,
            offload=offload,
            machine=machine,
        )
        # One layer's copies are under way while the next one is at work.
        buffer = np.minimum(2 * _most(parts, "away_bytes"), total["away_bytes"])
    step_copies_s: Array = np.zeros(())
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
            )
            step_s = step_s + np.where(states > 0, on_host.seconds, 0.0)
            step_copies_s = step_copies_s + np.where(states > 0, on_host.copies_s, 0.0)
    gather_s = sync.step_gather.seconds
    if "param" in overlap:  # behind the next step's first forward
        gather_s = exposed_s(
            gather_s,
            forward_s,
            layers,
            overlapped=True,
            contention=machine.software.contention,
        )
    return StagePrice(
        forward_s=forward_s + copies.forward_s,
        backward_s=backward_s + copies.backward_s,
        weight_s=total["weight_s"]
        + accumulate_s
        + backward_exposed * _reduced(sync.backward_reduce, sync.backward_gather),
        recompute_s=total["recompute_s"],
        recompute_comm_s=total["recompute_tensor_s"]
        + total["recompute_context_s"]
        + total["recompute_expert_s"],
        tensor_comm_s=_passes(total, "tensor"),
        context_comm_s=_passes(total, "context"),
        expert_comm_s=_passes(total, "expert"),
        data_comm_s=forward_exposed + backward_exposed,
        offload_s=copies.forward_s + copies.backward_s,
        reduce_s=reduce_s,
        gather_s=gather_s,
        step_s=step_s + _taken_by_reduction(reduce_s, backward_s, layers, machine),
        step_copies_s=step_copies_s,
        parameters=parameters,
        expert_parameters=experts,
        frozen_parameters=frozen,
        saved_bytes=total["saved_bytes"],
        weight_bytes=total["weight_bytes"],
        forward_working_bytes=_most(parts, "forward_working_bytes") + buffer,
        backward_working_bytes=_redone(parts, segments) + buffer,
        gathered_bytes=_gathered(parts, parallel, precision, machine, offload),
        flops=total["flops"],
        recompute_flops=total["recompute_flops"],
    )


def _reduced(reduce: Sourced, gather: Sourced) -> Array:
    """The share of a backward's exchanges that sends gradients."""
    both: Array = reduce.seconds + gather.seconds
    return np.where(both > 0, reduce.seconds / np.where(both > 0, both, 1.0), 0.0)


def _taken_by_reduction(
    reduce_s: Array, backward_s: Array, layers: Array, machine: Machine
) -> Array:
    """What the last backward loses to the gradient reduction that it hides."""
    if "grad" not in machine.software.overlap:
        return np.zeros(())
    hidden = np.minimum(reduce_s, backward_s) * (1 - 1 / np.maximum(layers, 1))
    return np.asarray(machine.software.contention * hidden)


def _total(parts: Sequence[Part], name: str) -> Array:
    return np.asarray(
        sum(np.asarray(count) * getattr(price, name) for count, price in parts)
    )


def _most(parts: Sequence[Part], name: str) -> Array:
    """The largest working set of any block that is there."""
    most: Array = np.zeros(())
    for count, price in parts:
        here = np.where(np.asarray(count) > 0, getattr(price, name), 0)
        most = np.maximum(most, here)
    return most


def _redone(parts: Sequence[Part], segments: Sequence[Sequence[Part]]) -> Array:
    """The largest working set of backward: a block's, or that of all the layers of a
    segment, whose saved tensors are there at once."""
    most = _most(parts, "backward_working_bytes")
    for segment in segments:
        inside = _most(segment, "forward_working_bytes")
        most = np.maximum(most, _total(segment, "dropped_bytes") + inside)
    return most


def _passes(total: dict[str, Array], kind: str) -> Array:
    return np.asarray(
        sum(total[f"{part}_{kind}_s"] for part in ("forward", "recompute", "backward"))
    )


def _gathered(
    parts: Sequence[Part],
    parallel: DataParallel,
    precision: Precision,
    machine: Machine,
    offload: Offload,
) -> Array:
    """What is whole of layers that are sharded: ZeRO-3's parameters, of the layer in
    use and the one prefetched; and, as `fully_shard` does it and where the optimizer is
    offloaded, from ZeRO-2 on the gradient of a layer, as made and as it is sent."""
    weights: Array = np.zeros(())
    for count, price in parts:
        here = _weight_bytes(_trained(price), price.frozen_parameters, precision)
        weights = np.maximum(weights, np.where(np.asarray(count) > 0, here, 0))
    habits = machine.software.footprint
    whole = 2 * weights
    if habits.live_parameters is not None:  # the widest weight of a layer, and those
        live = habits.live_parameters * precision.parameter.bytes
        whole = np.minimum(whole, live + weights / WIDEST_WEIGHT)
    whole = np.where(parallel.zero == 3, whole, 0.0)
    if habits.dummy_gradients:
        whole = whole + _most(parts, "parameters") * precision.activation.bytes
    if not machine.software.fully_shard and not offload.optimizer:
        return whole
    largest: Array = np.zeros(())
    for count, price in parts:
        here = np.where(np.asarray(count) > 0, _trained(price), 0)
        largest = np.maximum(largest, here)
    gradients = 2 * largest * precision.gradient_bytes
    shards = np.where(offload.optimizer, 2, parallel.shards)  # the host is one more
    sharded = (parallel.zero >= 2) & (shards > 1)
    return whole + np.where(sharded, gradients, 0.0)


def _weight_bytes(parameters: Array, frozen: Array, precision: Precision) -> Array:
    return parameters * precision.parameter.bytes + frozen * precision.frozen_bytes


def _trained(price: Atom) -> Array:
    return np.asarray(price.parameters + price.expert_parameters)
