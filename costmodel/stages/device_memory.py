"""Bytes that a rank needs, kind by kind.

parameters, gradients, optimizer   by precision policy and ZeRO level
activations                        saved bytes × micro-batches in flight
transient                          the working set of the pass at the peak, what ZeRO
                                   gathers, buckets that are exchanged
communication                      NCCL's buffers
reserve                            allocator rounding and fragmentation, and blocks that
                                   it keeps of another part of the step
context                            what the driver keeps per process

What is needed is all of that but cached blocks, which are given back before the device
is full: a device may show itself full and yet have room.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Final

import numpy as np

from costmodel.layout import NOTHING, Offload
from costmodel.machine import PLAIN, Footprint, Machine, shares_cores
from costmodel.stages.data_parallelism import DataParallel, level_away
from profiles.arrays import Array, Arrays
from profiles.hardware import Device, Format, Precision
from profiles.system import BUCKET_BYTES
from profiles.units import GiB

# What the allocator reserves over what it hands out, of states and of what comes and
# goes, [fitted]: SimuMax's runs alone, which print both, give 3.9 and 13.6 % (rms 1.3
# GiB), BLOOM's under nvidia-smi 5.6 and 2.9 % (3 GiB, which is their noise).
FRAGMENTATION: Final = 0.04
# What of that has to be there: whole segments that nothing is in are given back before
# an allocation fails [fitted] on which of Hagemann's layouts ran out: the likelihood is
# largest at 0.03 to 0.035, and as good as that from 0.015 to 0.04.
PINNED: Final = 0.03
# Of 80 GB cards 79.15 GiB are usable, less 2 to 3 GiB of context and communicators.
CONTEXT_BYTES: Final = 0.75 * GiB
# NCCL's buffers grow with the channels that it opens, a few on PCIe and the first
# NVLinks, two dozen and more since [fitted]: on V100s OneFlow's tp 8 against one GPU,
# on A100s BLOOM's 81 runs (mean error 4.0 %, and 4.3 with 2.5 GiB; Hagemann's outcomes
# are likeliest at 4 GiB and more), on GH200s Sailor's (rms 3 GiB). By what an
# architecture's name begins with; a TPU has no NCCL.
COMMUNICATOR_BYTES: Final = 2.5 * GiB
ONE_COMMUNICATOR_BYTES: Final = COMMUNICATOR_BYTES / 2  # [assumed] of the whole job
COMMUNICATORS_OF: Final = {
    "pascal": 0.3 * GiB,
    "volta": 0.3 * GiB,
    "turing": 0.3 * GiB,
    "ampere": 4.0 * GiB,
    "tpu": 0.0,
}
# Standard deviations of what is needed, as shares: of activations, of the working set,
# and of what is there beside tensors; states are exact, and errors add up [fitted] on
# which of Hagemann's layouts ran out and on 193 published peaks, every source weighing
# the same (`benchmarks.odds`).
SPREAD: Final = (0.10, 0.25, 0.15)

KINDS: Final = (
    *("parameters", "gradients", "optimizer", "activations", "transient"),
    *("communication", "reserve", "context"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """Bytes by kind at the instant of the peak; arrays or numbers. `cached` is that
    part of the reserve that nothing uses, there as long as there is room. `spread` is
    the standard deviation of what is needed, `margin` what of it is to be left free."""

    parameters: Array
    gradients: Array
    optimizer: Array
    activations: Array
    transient: Array
    communication: Array
    reserve: Array
    context: Array
    cached: Array
    spread: Array
    margin: Array

    @property
    def total(self) -> Array:
        """What the device would show."""
        return np.asarray(sum(getattr(self, name) for name in KINDS))

    @property
    def needed(self) -> Array:
        """What has to be there at once: it decides whether a layout fits."""
        return np.asarray(self.total - self.cached)

    @property
    def secured(self) -> Array:
        """What is needed with the margin that is to be left free: it decides whether a
        layout fits as surely as is asked."""
        return np.asarray(self.needed + self.margin)

    @property
    def allocated(self) -> Array:
        """What the framework's allocator handed out."""
        states = self.parameters + self.gradients + self.optimizer
        return np.asarray(states + self.activations + self.transient)

    def each(self) -> tuple[Memory, ...]:
        """One entry a rank, of arrays by rank."""
        names = [item.name for item in fields(self)]
        columns = (getattr(self, name).tolist() for name in names)
        return tuple(
            Memory(**dict(zip(names, row, strict=True)))
            for row in zip(*columns, strict=True)
        )

    def document(self) -> dict[str, float]:
        """Bytes by kind, and their sum."""
        kinds = {name: float(getattr(self, name)) for name in KINDS}
        return {**kinds, "total": sum(kinds.values())}


@dataclass(frozen=True, slots=True, kw_only=True)
class PeakContents:
    """What a rank holds at the instant of its peak; arrays or numbers.

    *parameters* are per tp rank, before sharding. *frozen_parameters* beside them have
    neither gradient nor optimizer state; *expert_parameters* shard over the ranks that
    hold the same experts, often one. *gathered_bytes* are whole of what is sharded.
    Trained weights are kept in so many *versions*.
    """

    parameters: Array
    expert_parameters: Any = 0.0
    frozen_parameters: Any = 0.0
    gathered_bytes: Array
    activation_bytes: Array
    transient_bytes: Array
    versions: Any = 1

    @property
    def trained(self) -> Array:
        return np.asarray(self.parameters + self.expert_parameters)


@dataclass(frozen=True, slots=True, kw_only=True)
class StatePolicy:
    """How the states of a parameter are kept: weight and gradient as *precision* says,
    so many *moments* in fp32, and on the host what *offload* names, with an optimizer
    the gradients that ZeRO has reduced (level 2 and up)."""

    precision: Precision
    moments: int
    offload: Offload = NOTHING


@dataclass(frozen=True, slots=True, kw_only=True)
class Process:
    """The process that a rank is: its *device*, the *ranks* of the whole job (a single
    one opens no communicator), and what its framework is used to.

    A device may have a context and communicators of its own size (a CPU process has
    neither). With *fully_shard* ZeRO-1 and 2 keep each parameter's shard beside the
    whole one; *footprint* says what else the framework keeps.
    """

    device: Device
    ranks: Array
    fully_shard: bool = False
    footprint: Footprint = PLAIN

    @property
    def context_bytes(self) -> float:
        return own_bytes(self.device, "context", CONTEXT_BYTES)

    def communicator_bytes(self, parallel: DataParallel) -> Array:
        """Bytes of communicators where a job is cut as *parallel* says."""
        ways = np.asarray(parallel.tp) * parallel.pp * parallel.cp * parallel.copies
        return communicator_bytes(self.device, self.ranks, one_group=ways == 1)


def memory(
    contents: PeakContents,
    *,
    policy: StatePolicy,
    process: Process,
    parallel: DataParallel,
    micro_batches: Any = 2,
) -> Memory:
    """Memory of a rank that is *process* and holds *contents*.

    A CPU has offloaded states itself, but on drives: then it has those that wait to be
    written. `fully_shard` has no gradients from ZeRO-2 on until the first backward
    scatters them: of a single one of *micro_batches* they take the place of weights
    that it lets go of, layer by layer, or with ZeRO-3 of activations. ZeRO-1 is
    ZeRO-2 then: its first backward is the last, and scatters. The allocator
    still holds the blocks that were theirs (`reserve`: between 8 and 128 GPUs
    torchtitan reserves 16.4 bytes a parameter less, gradients and all).
    """
    footprint, capacity_bytes = process.footprint, process.device.capacity_bytes
    once = process.fully_shard & (np.asarray(micro_batches) < 2)
    second = np.where((parallel.zero == 1) & once, 2, parallel.zero)
    parallel = replace(parallel, zero=second)
    kept = _on_device(contents, parallel, policy, process)
    transient = _transient_bytes(contents, parallel, policy.precision, footprint)
    saved = contents.activation_bytes * footprint.kept
    passing = SPREAD[0] * saved + SPREAD[1] * transient
    flat = (parallel.zero < 3) & (not process.fully_shard)
    found = _step_or_passes(saved, transient, kept.copies, flat=flat)
    activations, transient, left = found
    held = kept.weight + kept.gradient + kept.optimizer + activations + transient
    shape = np.broadcast(held, np.asarray(process.ranks)).shape
    communicators = process.communicator_bytes(parallel)
    # Below ZeRO-3 backward lets go of each layer's weights, which are more.
    freed = np.where(parallel.zero < 3, np.inf, activations)
    later = (parallel.zero >= 2) & (parallel.shards > 1) & once
    absent = np.where(later, np.minimum(kept.gradient, freed), 0.0)
    # A tensor that is there from the first step to the last breaks no block.
    loose = held - (kept.weight + kept.optimizer) * footprint.flat_states
    context = process.context_bytes
    pinned = np.maximum(PINNED * loose + footprint.beside_bytes, 0.0)
    # Blocks that nothing uses are given back before the allocator fails.
    room = capacity_bytes - (held - absent + pinned + communicators + context)
    room = np.maximum(room, 0.0)
    late = np.minimum(absent, room)  # blocks of gradients to come: they are not cached
    cached = np.minimum(left + (FRAGMENTATION - PINNED) * loose, room - late)
    spread = passing + SPREAD[2] * (pinned + communicators + context)
    pieces = {
        "parameters": kept.weight,
        "gradients": kept.gradient - absent,
        "optimizer": kept.optimizer,
        "activations": activations,
        "transient": transient,
        "communication": communicators,
        "reserve": pinned + late + cached,
        "context": np.asarray(context),
        "cached": cached,
        "spread": footprint.memory_spread * spread,
        "margin": footprint.deviations * footprint.memory_spread * spread,
    }
    return Memory(**{name: np.broadcast_to(one, shape) for name, one in pieces.items()})


def _transient_bytes(
    contents: PeakContents,
    parallel: DataParallel,
    precision: Precision,
    footprint: Footprint,
) -> Array:
    """What comes and goes in the passes, with buffers that gradients travel in."""
    trained = contents.trained
    cache = precision.cast_cache.bytes if precision.cast_cache else 0.0
    every, _ = footprint.gradient_bytes(precision)
    transient = contents.transient_bytes + trained * cache + contents.gathered_bytes
    buckets = np.minimum(footprint.bucket_elements, trained) * (
        min(every, Format.FP32.bytes) + precision.parameter.bytes
    )
    transient = transient + np.where(parallel.dp > 1, buckets, 0.0)
    return np.asarray(transient * footprint.kept)


def secured_of_kept(footprint: Footprint) -> float:
    """What of `Memory.secured` a byte of activations is."""
    spread = SPREAD[0] + SPREAD[2] * PINNED
    free = footprint.deviations * footprint.memory_spread * spread
    return (1 + PINNED + free) * footprint.kept


@dataclass(frozen=True, slots=True, kw_only=True)
class _States(Arrays):
    """Bytes of a rank's states, and of what the optimizer's step makes (`copies`)."""

    weight: Array
    gradient: Array
    optimizer: Array
    copies: Array


def _on_device(
    contents: PeakContents,
    parallel: DataParallel,
    policy: StatePolicy,
    process: Process,
) -> _States:
    """States of all parameters, but for those that are offloaded."""
    precision, offload = policy.precision, policy.offload
    fully_shard, footprint = process.fully_shard, process.footprint
    sharded = parallel.shards > 1  # so are experts then, on one rank or more
    masters = footprint.shards_are_masters & (sharded | (not fully_shard))
    shards = _Shards(
        twice=fully_shard & sharded,
        masters=masters & (parallel.zero == 3),
    )
    kept = _states(contents.parameters, parallel, policy, footprint, shards)
    if np.any(contents.expert_parameters):
        apart = parallel.of_experts(as_layers=fully_shard and not offload.parameters)
        kept = kept + _states(
            contents.expert_parameters, apart, policy, footprint, shards
        )
    frozen = contents.frozen_parameters * precision.frozen_bytes
    stashed = (contents.versions - 1) * contents.trained * precision.parameter.bytes
    weight = kept.weight + frozen / parallel.shard_of(3) + frozen * parallel.second_copy
    weight = weight + stashed
    if offload.parameters:
        weight = np.zeros_like(weight)
    kept = replace(kept, weight=weight)
    if not offload.optimizer:
        return kept
    return _without_optimizer(kept, contents.trained, parallel, policy, process)


def _without_optimizer(
    kept: _States,
    trained: Array,
    parallel: DataParallel,
    policy: StatePolicy,
    process: Process,
) -> _States:
    """What of *kept* stays where the optimizer is offloaded."""
    weight, gradient, offload = kept.weight, kept.gradient, policy.offload
    level = level_away(parallel, offload, fully_shard=process.fully_shard)
    leaves = offload.tier == "nvme" or not shares_cores(process.device)
    away = (level >= 2) & leaves
    if process.fully_shard and not policy.precision.master:
        # The shards are what is updated there.
        here = trained * policy.precision.parameter.bytes
        weight = np.where(parallel.zero < 3, np.minimum(weight, here), weight)
    return _States(
        weight=weight,
        gradient=np.where(away, waiting_bytes(gradient, process.device), gradient),
        optimizer=np.zeros_like(kept.optimizer),
        copies=np.zeros_like(kept.copies),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Shards:
    """What ZeRO's shards are. `twice`: they are kept beside what is whole; `masters`:
    they are the fp32 weights themselves, of which the optimizer has no others."""

    twice: Array
    masters: Array


def _weight_bytes(
    parameters: Array, parallel: DataParallel, precision: Precision, shards: _Shards
) -> Array:
    """Of trained parameters, as they are kept, with hpZ's second copy; the optimizer's
    masters are its own."""
    each = precision.parameter.bytes
    second = parameters * each * parallel.second_copy
    weight = np.asarray(parameters * each / parallel.shard_of(3))
    if precision.master:
        own = parameters * precision.master_bytes / parallel.shard_of(3)
        return np.where(shards.masters, own, weight) + second
    both = shards.twice & ((parallel.zero == 1) | (parallel.zero == 2))
    weight = weight + np.where(both, parameters * each / parallel.shards, 0.0)
    return weight + second


def waiting_bytes(gradients: Array, device: Device) -> Array:
    """Of a rank's *gradients*, as ZeRO scatters them, what stays when they are sent to
    a drive: a CPU has in its memory what waits to be a bucket of the file."""
    return np.minimum(gradients, BUCKET_BYTES if shares_cores(device) else 0.0)


def pipeline_buffers(on: Machine, pp: Any) -> Array:
    """How many times the activations of 1F1B a pipeline of *pp* ranks holds."""
    return np.where(np.asarray(pp) > 1, on.framework.footprint.pipeline_buffers, 1.0)


def _states(
    parameters: Array,
    parallel: DataParallel,
    policy: StatePolicy,
    footprint: Footprint,
    shards: _Shards,
) -> _States:
    """Of trained *parameters* that are sharded as *parallel* says."""
    precision = policy.precision
    every, copied = footprint.gradient_bytes(precision)
    shard = parameters / parallel.shard_of(1)
    masters = np.where(shards.masters, 0.0, precision.master_bytes)
    state = masters + policy.moments * Format.FP32.bytes
    return _States(
        weight=_weight_bytes(parameters, parallel, precision, shards),
        gradient=parameters * every / parallel.shard_of(2),
        optimizer=shard * state,
        copies=shard * (copied + footprint.step_bytes),
    )


def _step_or_passes(
    activations: Array, transient: Array, copies: Array, *, flat: Array
) -> tuple[Array, Array, Array]:
    """(activations, transient) of the passes or, where that is more, of the step, and
    what the allocator keeps of the other.

    When the optimizer copies its shard's gradients (*copies*) no activation is left: no
    instant has both. A *flat* copy of a whole shard wants blocks of its own, so that
    the allocator reserves both; parameter by parameter it takes blocks that the passes
    left (ZeRO-3, FSDP).
    """
    passes = activations + transient
    stepping = copies > passes
    left = np.where(flat, np.minimum(copies, passes), 0.0)
    return (
        np.where(stepping, 0.0, activations),
        np.where(stepping, copies, transient),
        left,
    )


def communicator_bytes(device: Device, ranks: Array, *, one_group: Any) -> Array:
    """Bytes of a process's communicators in a job of *ranks*: less where *one_group*,
    of the whole job, is all that anybody needs (data parallelism alone)."""
    architecture = device.architecture.lower()
    known = (
        size for name, size in COMMUNICATORS_OF.items() if architecture.startswith(name)
    )
    every = own_bytes(device, "communicator", next(known, COMMUNICATOR_BYTES))
    one = np.where(one_group, np.minimum(every, ONE_COMMUNICATOR_BYTES), every)
    return np.where(np.asarray(ranks) > 1, one, 0.0)


def own_bytes(device: Device, kind: str, usual: float) -> float:
    """What *device* says of itself, or what is *usual* on a GPU."""
    return device.extra[kind].si if kind in device.extra else usual


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Peak:
    """What the pipeline ranks of a layout hold; arrays by rank.

    `away_bytes` are the most activations that are offloaded at once.
    """

    on: Machine
    devices: Sequence[Device]
    precision: Precision
    moments: int
    offload: Offload
    parallel: Sequence[DataParallel]  # of each rank, as numbers
    gpus: int
    micro_batches: int
    parameters: Array
    expert_parameters: Array
    frozen_parameters: Array
    gathered_bytes: Array
    activation_bytes: Array
    transient_bytes: Array
    away_bytes: Array
    versions: Array

    @property
    def ranks(self) -> int:
        return len(self.parameters)


def memories(peaks: Sequence[Peak]) -> list[tuple[Memory, ...]]:
    """Of each layout, each pipeline rank's bytes at its peak."""
    groups: dict[object, list[tuple[int, Device]]] = defaultdict(list)
    for number, one in enumerate(peaks):
        for device in {id(device): device for device in one.devices}.values():
            kind = one.precision, one.moments, one.offload
            groups[id(one.on), id(device), kind].append((number, device))
    found: list[list[Memory | None]] = [[None] * one.ranks for one in peaks]
    for members in groups.values():
        together = [peaks[number] for number, _ in members]
        each = iter(_together(together, members[0][1]).each())
        for number, device in members:
            for rank, own in enumerate(peaks[number].devices):
                here = next(each)
                if own is device:
                    found[number][rank] = here
    return [tuple(one for one in each if one is not None) for each in found]


def _together(peaks: Sequence[Peak], device: Device) -> Memory:
    """The memory of all ranks of *peaks*, one layout after another, on a *device*."""
    ranks, first = [one.ranks for one in peaks], peaks[0]

    def by_rank(values: Iterable[int]) -> Array:
        return np.repeat(list(values), ranks)

    def joined(name: str) -> Array:
        return np.concatenate([getattr(one, name) for one in peaks])

    return memory(
        PeakContents(**{item.name: joined(item.name) for item in fields(PeakContents)}),
        policy=StatePolicy(
            precision=first.precision, moments=first.moments, offload=first.offload
        ),
        process=Process(
            device=device,
            ranks=by_rank(one.gpus for one in peaks),
            fully_shard=first.on.framework.fully_shard,
            footprint=first.on.framework.footprint,
        ),
        parallel=DataParallel.of([rank for one in peaks for rank in one.parallel]),
        micro_batches=by_rank(one.micro_batches for one in peaks),
    )
