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
from costmodel.step_work import accumulated, updated
from profiles.precision import Precision

Array = NDArray[Any]
Part = tuple[Any, Atom]  # how many of a block (a number or an array), and its price


@dataclass(frozen=True, slots=True, kw_only=True)
class StagePrice:
    """One micro-batch through a stage, and its share of the step's end.

    `forward_s` and `backward_s` are whole passes: compute, recompute, exposed tensor,
    context and data communication; the parts are those of the two passes together.
    """

    forward_s: Array
    backward_s: Array
    recompute_s: Array
    recompute_comm_s: Array  # what of it is tensor and context communication
    tensor_comm_s: Array
    context_comm_s: Array
    data_comm_s: Array
    reduce_s: Array
    gather_s: Array
    step_s: Array
    parameters: Array  # that are trained
    frozen_parameters: Array
    saved_bytes: Array
    forward_working_bytes: Array
    backward_working_bytes: Array
    gathered_bytes: Array  # parameters that ZeRO-3 holds unsharded at a time
    flops: Array
    recompute_flops: Array

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
) -> StagePrice:
    """Price a stage that holds *parts*, for one rank of it; *optimizer* by name."""
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
    accumulate_s = accumulated(
        parameters, parallel, precision, machine, frozen=frozen
    ).seconds
    backward_compute = total["recompute_s"] + total["backward_s"] + accumulate_s
    forward_exposed = exposed_s(
        sync.forward_gather.seconds,
        total["forward_s"],
        layers,
        overlapped="param" in overlap,
    )
    backward_exposed = exposed_s(
        (sync.backward_gather + sync.backward_reduce).seconds,
        backward_compute,
        layers,
        overlapped="grad" in overlap,
    )
    forward_s = total["forward_s"] + forward_exposed
    gather_s = sync.step_gather.seconds
    if "param" in overlap:  # behind the next step's first forward
        gather_s = exposed_s(gather_s, forward_s, layers, overlapped=True)
    return StagePrice(
        forward_s=forward_s,
        backward_s=backward_compute + backward_exposed,
        recompute_s=total["recompute_s"],
        recompute_comm_s=total["recompute_tensor_s"] + total["recompute_context_s"],
        tensor_comm_s=_passes(total, "tensor"),
        context_comm_s=_passes(total, "context"),
        data_comm_s=forward_exposed + backward_exposed,
        reduce_s=sync.step_reduce.seconds,
        gather_s=gather_s,
        step_s=updated(parameters, parallel, precision, machine, optimizer).seconds,
        parameters=parameters,
        frozen_parameters=frozen,
        saved_bytes=total["saved_bytes"],
        forward_working_bytes=_most(parts, "forward_working_bytes"),
        backward_working_bytes=_most(parts, "backward_working_bytes"),
        gathered_bytes=_gathered(parts, parallel, precision, machine),
        flops=total["flops"],
        recompute_flops=total["recompute_flops"],
    )


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


def _passes(total: dict[str, Array], kind: str) -> Array:
    return np.asarray(
        sum(total[f"{part}_{kind}_s"] for part in ("forward", "recompute", "backward"))
    )


def _gathered(
    parts: Sequence[Part],
    parallel: DataParallel,
    precision: Precision,
    machine: Machine,
) -> Array:
    """What is whole of layers that are sharded: ZeRO-3's parameters, of the layer in
    use and the one prefetched; and, as `fully_shard` does it, from ZeRO-2 on the
    gradient of a layer, as it was made and as it is sent."""
    weights: Array = np.zeros(())
    for count, price in parts:
        here = price.parameters * precision.parameter.bytes
        here = here + price.frozen_parameters * precision.frozen_bytes
        weights = np.maximum(weights, np.where(np.asarray(count) > 0, here, 0))
    whole = np.where(parallel.zero == 3, 2 * weights, 0.0)
    if not machine.software.fully_shard:
        return whole
    gradients = 2 * _most(parts, "parameters") * precision.gradient_bytes
    sharded = (parallel.zero >= 2) & (parallel.shards > 1)
    return whole + np.where(sharded, gradients, 0.0)
