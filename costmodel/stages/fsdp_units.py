"""What ZeRO does in each unit of a rank beside what it communicates.

    every micro-batch   hooks around the passes; from ZeRO-2 on gradients are copied
                        into a buffer and their sums divided; ZeRO-3 copies what it
                        gathers into a buffer and out of one, for either pass
                        ZeRO++ makes blocks of numbers and numbers of blocks, and
                        copies its part of what forward gathered (hpZ)
    every step          ZeRO-1 and 2 copy what they gather, ZeRO-1 what it reduces

As `fully_shard` was measured on a CPU (`profiles.measure.timing.fsdp_unit`). Beside a
GPU hooks are the host's, and copies are priced by bytes (`step_work`), ZeRO++'s work
everywhere.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

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
from profiles.samples import UNIT_KINDS

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
