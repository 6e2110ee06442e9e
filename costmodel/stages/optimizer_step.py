"""What a rank does with gradients and shards beside exchanging them.

every micro-batch   fresh gradients are accumulated                → accumulated
                    hooks around the passes of each unit; from ZeRO-2 on gradients are
                    copied into a buffer and their sums divided; ZeRO-3 copies what it
                    gathers into a buffer and out of one, for either pass; ZeRO++ makes
                    blocks of numbers and numbers of blocks, and copies its part of
                    what forward gathered (hpZ)                    → unit_work
every step          the norm of gradients, clipping, the update    → updated
                    ZeRO-1 and 2 copy what they gather, ZeRO-1 what it reduces

As it was measured, where the machine has samples of it (of units: `fully_shard` on a
CPU, `profiles.measure.timing.fsdp_unit`); else bytes at a measured bandwidth. Beside a
GPU hooks are the host's.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from costmodel.machine import (
    Machine,
    Sourced,
    gathering_bytes,
    reducing_bytes,
    traffic_s,
)
from costmodel.stages.data_parallelism import DataParallel, reduced_bytes
from profiles.arrays import Array, Arrays
from profiles.hardware import Format, Precision
from profiles.models import OPTIMIZERS
from profiles.samples import SIXTEEN_BITS, STEP_KINDS, UNIT_KINDS

PASS, REDUCE, GATHER = UNIT_KINDS


@dataclass(frozen=True, slots=True, kw_only=True)
class UnitWork(Arrays):
    """Seconds of one micro-batch's passes, and of the step's end."""

    forward: Sourced
    backward: Sourced
    step: Sourced

    @property
    def of_micro_batch(self) -> Sourced:
        return self.forward + self.backward


_NOTHING = Sourced(seconds=np.zeros(()))
NO_WORK = UnitWork(forward=_NOTHING, backward=_NOTHING, step=_NOTHING)


def measures_units(machine: Machine) -> bool:
    """Whether *machine* has samples of them: its copies are in those."""
    return machine.step(GATHER, np.asarray(1.0)) is not None


def unit_work(
    parameters: Array,
    parallel: DataParallel,
    precision: Precision,
    machine: Machine,
    *,
    units: Any,
) -> UnitWork:
    """Of a stage of *parameters* (per tp rank) in *units* layers."""
    work = NO_WORK
    if measures_units(machine):
        work = _measured(parameters, parallel, precision, machine, units)
    if not parallel.has_zero_plus:
        return work
    return work + _of_zero_plus(parameters, parallel, precision, machine)


def _of_zero_plus(
    parameters: Array, parallel: DataParallel, precision: Precision, machine: Machine
) -> UnitWork:
    """Bytes at the bandwidth of memory."""
    group, number = parallel.shard_group(machine), precision.parameter.bytes
    gathered = gathering_bytes(parameters, group, number)
    forward = np.where(parallel.gathers_blocks, gathered, 0.0)
    forward = forward + 2 * number * parameters * parallel.second_copy
    reduced = reducing_bytes(parameters, group, number)
    backward = np.where(parallel.reduces_blocks(group), reduced, 0.0)

    def moved(size_bytes: Array) -> Sourced:
        found = traffic_s(size_bytes, device=machine.device, rates=machine.rates)
        return Sourced(seconds=found).where(size_bytes > 0)

    return UnitWork(forward=moved(forward), backward=moved(backward), step=NO_WORK.step)


def _measured(
    parameters: Array,
    parallel: DataParallel,
    precision: Precision,
    machine: Machine,
    units: Any,
) -> UnitWork:
    zero = np.where(parallel.shards > 1, parallel.zero, 0)
    units = np.maximum(units, 1)

    def each(kind: str, size_bytes: float) -> Sourced:
        whole = parameters / units * (size_bytes / Format.FP32.bytes)
        found = machine.step(kind, whole)
        assert found is not None
        known: Sourced = found.or_else(lambda: np.zeros(np.shape(whole))) * units
        return known

    hooks = each(PASS, Format.FP32.bytes)
    reduced = each(REDUCE, reduced_bytes(precision, machine))
    gathered = each(GATHER, precision.parameter.bytes)
    return UnitWork(
        forward=gathered.where(zero == 3),
        backward=hooks.where(zero == 1)
        + reduced.where(zero >= 2)
        + gathered.where(zero == 3),
        step=reduced.behind(hooks.seconds).where(zero == 1)
        + gathered.where((zero == 1) | (zero == 2)),
    )


ACCUMULATE, GRADIENT_NORM, _ = STEP_KINDS  # buffers are overwritten, never zeroed
# What its sample moves of each parameter: the fresh gradient and the sum are read, the
# sum is written, in fp32.
ACCUMULATE_BYTES: Final = 3 * Format.FP32.bytes


def accumulated(
    parameters: Array,
    parallel: DataParallel,
    precision: Precision,
    machine: Machine,
    *,
    frozen: Any = 0.0,
) -> Sourced:
    """Seconds of handling the weight gradients of one micro-batch, and of copying what
    ZeRO-3 gathered, *frozen* parameters too."""
    moved = accumulation_bytes(parameters, parallel, precision, machine)
    copied = frozen * 2 * 2 * precision.frozen_bytes
    moved = moved + np.where(parallel.zero == 3, copied, 0.0)

    def roofline() -> Array:
        return traffic_s(moved, device=machine.device, rates=machine.rates)

    found = machine.step(ACCUMULATE, moved / ACCUMULATE_BYTES)
    return Sourced(seconds=roofline()) if found is None else found.or_else(roofline)


def updated(
    parameters: Array,
    parallel: DataParallel,
    precision: Precision,
    machine: Machine,
    optimizer: str,
) -> Sourced:
    """Seconds of the optimizer's step, with what goes before it."""
    moments = OPTIMIZERS[optimizer]

    def roofline() -> Array:
        moved = optimizer_bytes(parameters, parallel, precision, moments)
        moved = moved + cast_bytes(parameters, precision, machine)
        return traffic_s(moved, device=machine.device, rates=machine.rates)

    shard = parameters / parallel.shard_of(1)
    found = machine.step(optimizer, shard)
    if found is None:
        return Sourced(seconds=roofline())
    copied = _copied_bytes(parameters, parallel, precision, machine) / ACCUMULATE_BYTES
    for kind, count in ((GRADIENT_NORM, shard), (ACCUMULATE, copied)):
        part = machine.step(kind, count)
        found = found if part is None else found + part
    return found.or_else(roofline)


def cast_bytes(parameters: Array, precision: Precision, machine: Machine) -> Array:
    """Bytes that making 8- or 4-bit weights of a rank's 16-bit ones moves, where that
    is done once a step."""
    once = machine.framework.fp8.casts_weights_once
    narrow = precision.matmul.bytes < SIXTEEN_BITS
    return parameters * machine.framework.fp8.quantise_bytes * (once and narrow)


def _copied_bytes(
    parameters: Array, parallel: DataParallel, precision: Precision, machine: Machine
) -> Array:
    """Bytes that a step moves beside the update: sums over replicas are divided by
    their number, gathered weights copied out (but for what `unit_work` prices),
    working weights written."""
    level = 1 if measures_units(machine) else 3
    replicated = (parallel.shards * parallel.replicas > 1) & (parallel.zero < level)
    copied = np.where(replicated, 2 * precision.parameter.bytes, 0.0) * parameters
    cast = precision.master_bytes + precision.parameter.bytes
    written = cast if precision.master else 0.0
    return np.asarray(copied + written * parameters / parallel.shard_of(1))


def accumulation_bytes(
    parameters: Array, parallel: DataParallel, precision: Precision, machine: Machine
) -> Array:
    """Bytes that handling the weights and their gradients of one micro-batch moves on a
    rank, beside the products.

    Below ZeRO-2 the product's gradient is read and added to the accumulated one, which
    is read and written; `fused` products do that themselves, for reading it, `autograd`
    adds 16-bit ones up in 16 bits, and software that casts 16-bit gradients first
    writes fp32 ones and reads them. From ZeRO-2 on it is copied into the reduction's
    buffer instead, and at ZeRO-3 gathered weights are copied out of the gather's buffer
    before each pass (as FSDP does): here, where `unit_work` has no samples of that.
    Autocast writes a copy of all weights for each forward, and casts gradients back.
    """
    made = precision.activation.bytes
    kept = reduced_bytes(precision, machine)
    copy = precision.cast_cache
    casts = machine.framework.gradients.casts or copy is not None
    cast = 2 * kept if casts and made < kept else 0.0
    added = {
        "fused": kept,
        "autograd": 3 * made,
        "separate": made + cast + 2 * kept,
    }[machine.framework.gradients.accumulation]
    copied = made + kept
    gathered = 2 * 2 * precision.parameter.bytes
    if measures_units(machine):
        copied = gathered = 0.0
    zero = parallel.zero
    per_parameter = np.where(zero >= 2, copied, added) + np.where(
        zero == 3, gathered, 0
    )
    if copy is not None:
        per_parameter = per_parameter + precision.parameter.bytes + copy.bytes
    return np.asarray(parameters * per_parameter)


def optimizer_bytes(
    parameters: Array, parallel: DataParallel, precision: Precision, moments: int
) -> Array:
    """Bytes that the optimizer step moves on a rank.

    Moments and master weights are read and written, the gradient read for its norm
    and once more for the update, the working weight written.
    """
    state = (precision.master_bytes or precision.parameter.bytes) + (
        moments * Format.FP32.bytes
    )
    weight = precision.parameter.bytes if precision.master else 0.0
    moved = 2 * state + 2 * precision.gradient.bytes + weight
    return np.asarray(parameters * moved / parallel.shard_of(1))
