"""What a stage holds on one rank, before memory adds it up: no seconds in it.

Most candidates are ruled out by their memory alone, so columns ask for this first.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from costmodel.contents import Contents
from costmodel.data_parallel import DataParallel
from costmodel.machine import Machine
from costmodel.offload import NOTHING, Offload
from costmodel.quantised_exchange import INT4_BYTES, INT8_BYTES
from costmodel.software import shares_cores
from profiles.precision import Precision

Array = NDArray[Any]
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
