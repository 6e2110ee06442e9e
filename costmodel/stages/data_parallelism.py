"""Data parallelism and ZeRO: who shards what, what travels, what stays exposed.

    zero 0   gradients all-reduced once a step
    zero 1   reduce-scattered once a step, parameters gathered after the optimizer
    zero 2   reduce-scattered every micro-batch, into the gradient shard
    zero 3   and parameters gathered before every forward and every backward

(Rajbhandari et al., SC 2020, section 5; with accumulation, section 5.2's reduction
happens once a micro-batch from level 2 on.) Shard groups span `zero_group · cp` ranks,
tp apart; the rest of data parallelism replicates the shards and all-reduces them.
ZeRO++ sends less at level 3 (`costmodel.layout.offload`).

Data parallelism as a stage's mesh has it, for one stage or as arrays of many.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from costmodel.layout import (
    NOTHING,
    Mesh,
    Offload,
    Stage,
    ZeroPlus,
    sums_shards_last,
)
from costmodel.machine import (
    Framework,
    Group,
    Machine,
    Sourced,
    blocks_gathered,
    blocks_reduced,
    near_members,
)
from profiles.arrays import Array, Arrays
from profiles.errors import Unsupported
from profiles.hardware import Format, Precision


@dataclass(frozen=True, slots=True, kw_only=True)
class DataParallel(Arrays):
    """The data-parallel side of a layout; integers, or integer arrays that broadcast.

    `dp` counts the ranks of all `copies` of the model in opposite directions; `apart`
    are parts of data parallelism of which no two share a fast domain, such as those.
    The last three are ZeRO++'s.
    """

    tp: Array
    cp: Array
    dp: Array
    zero: Array
    zero_group: Array
    pp: Any = 1
    ep: Any = 1
    etp: Any = 1
    apart: Any = 1
    copies: Any = 1
    quantized_weights: Any = False
    hpz_partition_size: Any = 1
    quantized_gradients: Any = False

    @classmethod
    def of(cls, several: Sequence[DataParallel]) -> DataParallel:
        """Numbers as arrays."""
        first, *others = several
        return first.each(lambda *each: np.array(each), *others)

    @property
    def ranks(self) -> Array:
        """Ranks of the whole job."""
        return np.asarray(self.tp * self.cp * self.dp * self.pp)

    def of_experts(self, *, as_layers: bool = False) -> DataParallel:
        """The same for the parameters of experts, of which each rank holds its own.

        They are alike on tp · cp · dp / (ep · etp) ranks, ep · etp apart, and shard
        over those; replicas of shards (HSDP) are as many as the layer's, if they can.
        *as_layers*: they are sharded where their layers are, not where those have one
        rank, as `fully_shard` is begun for data parallelism.
        """
        zero = self.zero
        if as_layers:
            zero = np.where(self.dp * self.cp > 1, zero, 0)
        apart = self.ep * self.etp
        alike = np.maximum(self.tp * self.cp * self.dp // apart, 1)
        group = np.gcd(alike, np.maximum(alike // self.replicas, 1))
        return replace(
            self,
            tp=apart,
            cp=np.ones_like(alike),
            dp=alike,
            zero=zero,
            zero_group=group,
        )

    @property
    def shards(self) -> Array:
        """Ranks that one shard group spans (cp ranks hold the same weights)."""
        return np.asarray(self.zero_group * self.cp)

    @property
    def replicas(self) -> Array:
        return np.asarray(self.dp // self.zero_group)

    def shard_of(self, level: int) -> Array:
        """The divisor of what ZeRO *level* shards: 1 below that level."""
        return np.where(self.zero >= level, self.shards, 1)

    @property
    def has_zero_plus(self) -> bool:
        """Whether anything of ZeRO++ is chosen anywhere."""
        chosen = np.any(self.quantized_weights) or np.any(self.quantized_gradients)
        return bool(chosen or np.any(np.asarray(self.hpz_partition_size) > 1))

    @property
    def second_copy(self) -> Array:
        """The share of the weights that a rank has of a second copy of them."""
        if not self.has_zero_plus:
            return np.zeros(())
        size = np.asarray(self.hpz_partition_size)
        return np.where((self.zero == 3) & (size > 1), 1 / size, 0.0)

    def shard_group(self, machine: Machine) -> Group:
        """The ranks of a shard group as they lie on *machine*."""
        near = near_members(self.tp, self.shards, machine.island)
        return Group(ranks=self.shards, stride=self.tp, near=near)

    @property
    def gathers_blocks(self) -> Array:
        """Where forward's gather is quantised."""
        chosen = np.asarray(self.quantized_weights, dtype=bool)
        return np.asarray((self.zero == 3) & chosen & (self.shards > 1))

    def reduces_blocks(self, group: Group) -> Array:
        """Where gradients travel quantised: between domains alone."""
        chosen = np.asarray(self.quantized_gradients, dtype=bool)
        return np.asarray((self.zero == 3) & chosen & (group.across > 1))


def sharded_experts(
    parallel: DataParallel, framework: Framework, offload: Offload = NOTHING
) -> DataParallel:
    """The data-parallel side of experts, as *framework* shards them; shards that
    *offload* keeps on the host are there however many ranks share them."""
    lone = framework.fully_shard and not offload.parameters
    return parallel.of_experts(as_layers=lone)


def level_away(parallel: DataParallel, offload: Offload, *, fully_shard: bool) -> Array:
    """ZeRO's level where states are offloaded: `fully_shard` is not begun for one
    rank, but where its parameters are away."""
    if not fully_shard or offload.parameters:
        return np.asarray(parallel.zero)
    each = parallel.dp // parallel.copies * parallel.cp
    return np.where(each > 1, parallel.zero, 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Exchanges(Arrays):
    """A stage's data-parallel collectives."""

    step_reduce: Sourced  # once a step, after the last backward
    step_sum: Sourced  # of shards that are away by then, where nothing hides it
    step_gather: Sourced  # once a step, after the optimizer
    forward_gather: Sourced  # every micro-batch
    backward_gather: Sourced
    backward_reduce: Sourced

    @property
    def of_micro_batch(self) -> Sourced:
        return self.forward_gather + self.backward_gather + self.backward_reduce

    @property
    def of_step(self) -> Sourced:
        return self.step_reduce + self.step_sum + self.step_gather


def exchanges(
    parameters: Array,
    parallel: DataParallel,
    precision: Precision,
    machine: Machine,
    *,
    units: Any = 1,
    frozen: Any = 0.0,
    offload: Offload = NOTHING,
) -> Exchanges:
    """What a stage of *parameters* (per tp rank) in *units* layers exchanges.

    Shards travel layer by layer, whole gradients in buckets. *frozen* parameters are
    gathered for passes (ZeRO-3) and no more. Replicas of shards are summed with the
    last backward, but for what *offload* has away by then.
    """
    units = np.maximum(units, 1)
    pieces = messages_of(parameters, parallel, units, precision, machine)
    group, zero = parallel.shard_group(machine), parallel.zero
    shards, replicas = parallel.shards, parallel.replicas
    plain = reduced_bytes(precision, machine)
    sharded = reduced_bytes(precision, machine, shards=True)
    gradients = parameters * np.where(zero == 3, sharded, plain)
    in_shards: dict[str, Any] = {"ranks": shards, "near": group.near, "pieces": pieces}
    scattered = machine.collective("reduce_scatter", gradients, **in_shards)
    # Replicas of which none is in another part of data parallelism.
    together = np.maximum(replicas // parallel.apart, 1)
    near = near_members(parallel.tp, shards * together, machine.island)
    far = near_members(parallel.tp * shards, together, machine.island)
    all_reduce = partial(machine.collective, "all_reduce")
    ranks = shards * replicas
    share = np.where(zero == 0, machine.framework.gradients.compressed, 1.0)
    summed = all_reduce(gradients * share, ranks=ranks, near=near, pieces=pieces)
    across = all_reduce(gradients / shards, ranks=replicas, near=far, pieces=units)
    weight_bytes = parameters * precision.parameter.bytes
    gathered = machine.collective("all_gather", weight_bytes, **in_shards)
    every_bytes = weight_bytes + frozen * precision.frozen_bytes
    of_passes = gathered
    if np.any(np.asarray(frozen) > 0):
        of_passes = machine.collective("all_gather", every_bytes, **in_shards)
    of_passes = of_passes.where(zero == 3)
    whole = (zero == 0) | ((zero == 1) & machine.framework.gradients.reduces_whole)
    last = sums_shards_last(offload, zero, copies=1)
    found = Exchanges(
        step_reduce=summed.where(whole)
        + scattered.where((zero == 1) & ~whole)
        + across.where((zero > 0) & ~whole & ~last),
        step_sum=across.where(last & ~whole),
        step_gather=gathered.where((zero == 1) | (zero == 2)),
        forward_gather=of_passes,
        backward_gather=of_passes,
        backward_reduce=scattered.where(zero >= 2),
    )
    if parallel.has_zero_plus:
        side = (parameters, frozen, every_bytes, parallel, machine)
        found = _with_zero_plus(found, *side, pieces=pieces)
    return found


def _with_zero_plus(
    plain: Exchanges,
    parameters: Array,
    frozen: Any,
    weight_bytes: Array,
    parallel: DataParallel,
    machine: Machine,
    *,
    pieces: Any,
) -> Exchanges:
    """*plain* exchanges, but for what ZeRO++ sends instead: of *parameters* and
    *frozen* ones, which are *weight_bytes* together."""
    group = parallel.shard_group(machine)
    second = np.asarray(parallel.hpz_partition_size)
    gathered = blocks_gathered(parameters + frozen, group, machine, pieces=pieces)
    copied = machine.collective(
        "all_gather",
        weight_bytes,
        ranks=second,
        near=near_members(parallel.tp, second, machine.island),
        pieces=pieces,
    )
    reduced = blocks_reduced(parameters, group, machine, pieces=pieces)

    def instead(name: str, other: Sourced, where: Array) -> Sourced:
        found: Sourced = getattr(plain, name).where(~where) + other.where(where)
        return found

    return replace(
        plain,
        forward_gather=instead("forward_gather", gathered, parallel.gathers_blocks),
        backward_gather=instead("backward_gather", copied, parallel.second_copy > 0),
        backward_reduce=instead(
            "backward_reduce", reduced, parallel.reduces_blocks(group)
        ),
    )


def summed_s(
    summands: Array, parallel: DataParallel, precision: Precision, machine: Machine
) -> Array:
    """Seconds of summing gradients of so many parameters over tp, once a step: one
    all-reduce of a rank's shards (`runtime.train.step_hooks`)."""
    size = summands * precision.gradient.bytes / parallel.shard_of(1)
    near = near_members(np.asarray(1), parallel.tp, machine.island)
    found = machine.collective_s("all_reduce", size, ranks=parallel.tp, near=near)
    return np.where(size > 0, found, 0.0)


KERNELS_OF_AN_OPERATOR = 3.0  # which `Host.forward_us` issues


def copied_out_s(units: Array, parallel: DataParallel, framework: Framework) -> Array:
    """Seconds of the host that copies what ZeRO-1 gathered of *units* layers out of a
    buffer, a call for each tensor's part of each rank: they grow with the ranks."""
    calls = framework.gradients.copied_out * units * parallel.shards
    each_s = framework.host.forward_s / KERNELS_OF_AN_OPERATOR
    gathers = (parallel.zero == 1) & (parallel.shards > 1)
    return np.where(gathers, calls * each_s, 0.0)


def exposed_s(
    communication_s: Array,
    compute_s: Array,
    units: Array,
    *,
    overlapped: ArrayLike,
    contention: float,
) -> Array:
    """What of a pass's communication its compute does not hide.

    Of *units* equal layers the first one's transfer has nothing to hide behind, the
    others lie behind the compute of the layer before (FSDP's one-layer prefetch).
    Hiding is no free lunch: collectives take multiprocessors and memory bandwidth, so
    that compute beside them takes *contention* of their time longer.
    """
    if not np.any(overlapped):
        return communication_s
    units = np.maximum(units, 1)
    first = communication_s / units
    rest = 1 - 1 / units
    stolen = contention * np.minimum(communication_s, compute_s) * rest
    left = np.maximum((communication_s - compute_s) * rest, 0)
    return np.where(overlapped, first + left + stolen, communication_s)


def messages_of(
    parameters: Array,
    parallel: DataParallel,
    units: Array,
    precision: Precision,
    machine: Machine,
) -> Array:
    """In how many messages the gradients of a stage's *parameters* are reduced, and
    what is sharded of it gathered: whole gradients in buckets, shards layer by layer;
    or both below ZeRO-3 in buckets that grow with the ranks."""
    parts = full_messages(parameters, parallel, units, precision, machine)
    return np.maximum(np.ceil(parts), 1)


def full_messages(
    parameters: Array,
    parallel: DataParallel,
    units: Array,
    precision: Precision,
    machine: Machine,
) -> Array:
    """How many messages *parameters* fill: of several stages' together the sum."""
    habits = machine.framework.gradients
    layers = units * habits.messages
    if habits.shard_bucket is None:
        size = parameters * precision.gradient.bytes
        return np.where(parallel.zero == 0, size / habits.bucket_bytes, layers)
    least, each = habits.shard_bucket
    bucket = np.maximum(least, each * parallel.shards)
    return np.where(parallel.zero < 3, parameters / bucket, layers)


def reduced_bytes(
    precision: Precision, machine: Machine, *, shards: bool = False
) -> float:
    """Bytes of one gradient as it travels; to *shards* as ZeRO-3 sends it."""
    habits = machine.framework.gradients
    reduce = (shards and habits.reduce_shards) or habits.reduce
    if reduce == "half" and precision.parameter.bytes <= 2:
        return precision.parameter.bytes
    if reduce == "half-or-fp32":
        half = precision.parameter is Format.FP16
        return Format.FP16.bytes if half else Format.FP32.bytes
    return precision.gradient.bytes


# tp, cp, micro-batch, ep, etp: what the prices of a block's operators hang on
Place = tuple[int, int, int, int, int]


def place_of(mesh: Mesh, micro_batch: int) -> Place:
    """Where a stage's blocks are, with so many sequences at once."""
    return mesh.tp, mesh.cp, micro_batch, mesh.ep, mesh.etp


def data_parallel(mesh: Mesh, zero: int, pp: int = 1) -> DataParallel:
    """The data-parallel side of a stage's mesh, one of *pp* ranks', without ZeRO++."""
    return _numbers(mesh, zero, pp).each(np.asarray)


def parallel_of(
    stage: Stage, pp: int, plus: ZeroPlus, *, together: bool = True
) -> DataParallel:
    """Of a stage and all of its copies, as numbers; *together* where all of them lie in
    one fast domain."""
    copies = len(stage.held_by)
    own = _numbers(stage.mesh, one_zero(stage), -(-pp // copies))
    return replace(
        own,
        dp=own.dp * copies,
        apart=1 if together else copies,
        copies=copies,
        **{item.name: getattr(plus, item.name) for item in fields(plus)},
    )


def _numbers(mesh: Mesh, zero: int, pp: int) -> DataParallel:
    names = ("tp", "cp", "dp", "ep", "etp")
    degrees: dict[str, Any] = {name: getattr(mesh, name) for name in names}
    degrees |= {"zero": zero, "zero_group": mesh.dp_shard, "pp": pp}
    return DataParallel(**degrees)


def degrees_of(mesh: Mesh) -> tuple[int, ...]:
    """tp, cp, dp, ep, etp and the ranks of a shard group."""
    return mesh.tp, mesh.cp, mesh.dp, mesh.ep, mesh.etp, mesh.dp_shard


def one_zero(stage: Stage) -> int:
    """The ZeRO level of a stage's layers; raises Unsupported for several."""
    levels = {plan.zero for plan in stage.plans}
    if len(levels) > 1:
        raise Unsupported(
            f"layers of one stage with ZeRO levels {sorted(levels)} are not priced "
            "yet; give all layers of a stage one level"
        )
    return levels.pop()
