"""Seconds of what is offloaded: copies over the host link, and the host's own step.

Each device has a link to its host that carries both directions at once; copies lie
behind the pass that they are issued in, where the framework overlaps them (double
buffers), so that a pass waits for

    max(0, bytes out / link - pass, bytes in / link - pass)

    forward    out: the offloaded share of what is saved; in: offloaded parameters
    backward   in: both again; out, from ZeRO-2 on: gradients of an offloaded optimizer
    step       out, below ZeRO-2: the gradients, once (ZeRO-1's behind the last
               backward, as they are scattered; whole ones when they are summed and
               clipped); the update on the host; in: the updated weights, unless they
               stay there. In and out: gradients that are away when they are summed,
               over tp, the ends of the pipeline, holders or replicas of a shard

On drives are states, activations, parameters and scattered gradients: they are read and
written at the rates of a node's drives, which its ranks share, one after the other.
States are read and written once a step. Gradients are written by every micro-batch that
scatters them, and read by each but the first, which has nothing to add to; once more
for the norm, and once for the update. Of a device that is a CPU the host's memory is
its own: nothing takes a link.

(Yuan et al., ATC 2024, section 3.3; Ren et al., ATC 2021, section 4; Rajbhandari et
al., SC 2021, section 5.)
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import Final

import numpy as np

from costmodel.layout import Offload, sums_shards_last
from costmodel.machine import Machine, shares_cores
from costmodel.stages.data_parallelism import DataParallel, level_away
from costmodel.stages.optimizer_step import optimizer_bytes, updated
from profiles.arrays import Array
from profiles.hardware import Format, Precision
from profiles.models import OPTIMIZERS
from profiles.units import GB

# Of a PCIe link's datasheet rate a copy of pinned memory gets the payload's share:
# 256 bytes in a packet with 24 of header and framing, and about 5 % of the link for
# acknowledgements and credits. [derived]
HOST_LINK_FRACTION: Final = 0.87
# DeepSpeed's CPU-Adam steps 10 G parameters in 2.57 s on a DGX-2's two processors
# (Ren et al., ATC 2021, table 4, from memory: check), moving 28 bytes for each: three
# fp32 states read and written, a 16-bit gradient read, a 16-bit weight written.
HOST_UPDATE_BYTES_PER_S: Final = 28 * 10 / 2.57 * GB  # of a node
# NVMe drives of a DGX-2 node read in parallel (Rajbhandari et al., SC 2021, figure 2b,
# from memory: check).
NVME_BYTES_PER_S: Final = 25 * GB  # of a node


@dataclass(frozen=True, slots=True, kw_only=True)
class Waits:
    """Seconds that a pass waits for its copies beyond what it hides."""

    forward_s: Array
    backward_s: Array


NO_WAITS: Final = Waits(forward_s=np.zeros(()), backward_s=np.zeros(()))


@dataclass(frozen=True, slots=True, kw_only=True)
class HostStep:
    """An offloaded optimizer's step; `copies_s` of `seconds` are copies."""

    seconds: Array
    copies_s: Array


@dataclass(frozen=True, slots=True, kw_only=True)
class Moved:
    """Bytes of a rank that one micro-batch may move over the host link: what it saves
    and offloads, and the rank's shards of weights and gradients."""

    saved_bytes: Array
    weight_bytes: Array
    gradient_bytes: Array


def waits(
    moved: Moved,
    *,
    forward_s: Array,
    backward_s: Array,
    parallel: DataParallel,
    offload: Offload,
    machine: Machine,
    micro_batches: Array,
) -> Waits:
    """What one of *micro_batches*' passes through a stage, of *forward_s* and
    *backward_s*, waits for, on average: copies of what is *moved*, where *offload* has
    it away."""
    link, to = host_link(machine), tier_rates(parallel, offload, machine)
    fetched = moved.weight_bytes if offload.parameters else np.zeros(())
    level = level_away(parallel, offload, fully_shard=machine.framework.fully_shard)
    sent = np.where(level >= 2, moved.gradient_bytes, 0.0) * offload.optimizer
    hides = "offload" in machine.framework.overlap.hidden
    leave_s, fetch_s = moved.saved_bytes / to.write, fetched / to.read
    back_s = moved.saved_bytes / to.read + fetch_s
    if offload.tier == "nvme":
        added_to = sent * (1 - 1 / np.maximum(micro_batches, 1))
        back_s = back_s + sent / to.write + added_to / to.read
    return Waits(
        forward_s=_beyond(forward_s * hides, leave_s, fetch_s),
        backward_s=_beyond(backward_s * hides, sent / link, back_s),
    )


def host_step(
    parameters: Array,
    parallel: DataParallel,
    precision: Precision,
    machine: Machine,
    optimizer: str,
    *,
    offload: Offload,
    backward_s: Array,
    layers: DataParallel,
) -> HostStep:
    """The step of an optimizer on the host, over a rank's shard of *parameters*.

    *backward_s* is the last pass, behind which ZeRO-1's gradients leave; from ZeRO-2 on
    they are already gone. *layers* is the data parallelism of the stage's layers, whose
    level holds for experts too.
    """
    zero = level_away(layers, offload, fully_shard=machine.framework.fully_shard)
    shard = parameters / parallel.shard_of(1)
    to = tier_rates(parallel, offload, machine)
    gradients = shard * precision.gradient.bytes
    leaving = np.where(zero < 2, gradients, 0.0)
    hidden_s = (
        backward_s * ("offload" in machine.framework.overlap.hidden) * (zero == 1)
    )
    there = (zero >= 1) & (offload.tier == "nvme")  # on the drives
    rate = np.where(there, to.write, host_link(machine))
    out_s = _beyond(hidden_s, leaving / rate, np.zeros(()))
    back_s = _weights_back_s(shard, zero, precision, machine, offload, to)
    moments = OPTIMIZERS[optimizer]
    if shares_cores(machine.device):  # as everywhere there
        found = updated(parameters, parallel, precision, machine, optimizer)
        update_s = found.seconds
    else:  # bytes at what the ranks of a node share of its memory
        moved = optimizer_bytes(parameters, parallel, precision, moments)
        node = HOST_UPDATE_BYTES_PER_S / machine.pace
        update_s = moved / (node / on_node(parallel, machine))
    norm_s: Array = np.zeros(())
    if offload.tier == "nvme":
        states = shard * state_bytes(precision, moments)
        norm_s = np.where(there, gradients / to.read, 0.0)
        moved_s = states / to.read + states / to.write + norm_s
        update_s = np.maximum(update_s, moved_s)
    copies = np.asarray(out_s + back_s + norm_s)
    return HostStep(seconds=np.asarray(update_s + copies), copies_s=copies)


def summed_where_they_lie(
    parameters: Array,
    experts: Array,
    over_ranks: Array,
    *,
    parallel: DataParallel,
    apart: DataParallel,
    offload: Offload,
    machine: Machine,
) -> Array:
    """Elements of a rank's gradients that `fully_shard` has sent away when they are
    summed: *over_ranks* of tp, or of the pipeline's ends; all of them over holders of
    a stage, or replicas of shards."""
    if not machine.framework.fully_shard:
        return np.zeros(())
    level = level_away(parallel, offload, fully_shard=True)
    every = sums_shards_last(offload, level, copies=parallel.copies)
    every = every & (parallel.replicas > 1)
    shards, of_experts = parallel.shard_of(1), apart.shard_of(1)
    found = (over_ranks + every * parameters) / shards + every * experts / of_experts
    return np.where(level >= 1, found, 0.0)


def there_and_back_s(
    size_bytes: Array, parallel: DataParallel, offload: Offload, machine: Machine
) -> Array:
    """Seconds of bringing gradients to the device and sending their sums away."""
    to = tier_rates(parallel, offload, machine)
    return np.asarray(size_bytes / to.read + size_bytes / to.write)


def state_bytes(precision: Precision, moments: int) -> float:
    """Of a parameter whose optimizer is away: the value that is updated, in fp32, and
    the moments."""
    value = precision.master_bytes or precision.parameter.bytes
    return float(value + moments * Format.FP32.bytes)


def shard_bytes(precision: Precision, machine: Machine) -> float:
    """Of a parameter of a shard that is away: `fully_shard`'s are the masters, and are
    cast when they have come."""
    master = precision.master_bytes if machine.framework.fully_shard else 0.0
    return float(master or precision.parameter.bytes)


def _weights_back_s(
    shard: Array,
    zero: Array,
    precision: Precision,
    machine: Machine,
    offload: Offload,
    to: TierRates,
) -> Array:
    """Updated weights: `fully_shard`'s shards of ZeRO-1 and 2 are fetched from where
    they lie, others come from the update."""
    if offload.parameters:
        return np.zeros(())
    each = np.where(
        zero == 0,
        precision.parameter.bytes,
        shard_bytes(precision, machine),
    )
    fetched = ((zero == 1) | (zero == 2)) & machine.framework.fully_shard
    return np.asarray(shard * each / np.where(fetched, to.read, host_link(machine)))


@dataclass(frozen=True, slots=True, kw_only=True)
class TierRates:
    """Bytes a second between one rank and the tier."""

    read: Array
    write: Array


def host_link(machine: Machine) -> float:
    """Bytes a second between a device and its host, one way; no limit on a CPU."""
    if shares_cores(machine.device):
        return inf
    return machine.device.host_link.si * HOST_LINK_FRACTION / machine.pace


def tier_rates(parallel: DataParallel, offload: Offload, machine: Machine) -> TierRates:
    """Those of the link, or where it is slower of a share of the node's drives."""
    link = np.asarray(host_link(machine))
    if offload.tier != "nvme":
        return TierRates(read=link, write=link)
    each, island = on_node(parallel, machine), machine.cluster.islands[0]
    each = each * machine.pace
    read, write = (
        np.minimum(link, (known.si if known else NVME_BYTES_PER_S) / each)
        for known in (island.drive_read, island.drive_write)
    )
    return TierRates(read=read, write=write)


def on_node(parallel: DataParallel, machine: Machine) -> Array:
    """How many ranks share a host."""
    return np.minimum(parallel.ranks, machine.island.devices_per_node)


def _beyond(pass_s: Array, out_s: Array, in_s: Array) -> Array:
    return np.asarray(np.maximum(np.maximum(out_s, in_s) - pass_s, 0.0))
