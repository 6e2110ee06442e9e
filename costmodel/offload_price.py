"""Seconds of what is offloaded: copies over the host link, and the host's own step.

Each device has a link to its host that carries both directions at once; copies lie
behind the pass that they are issued in, where the framework overlaps them (double
buffers), so that a pass waits for

    max(0, bytes out / link - pass, bytes in / link - pass)

    forward    out: the offloaded share of what is saved; in: offloaded parameters
    backward   in: both again; out, from ZeRO-2 on: gradients of an offloaded optimizer
    step       out, below ZeRO-2: the gradients, once; the update on the host; in: the
               updated weights, unless they stay there

(Yuan et al., ATC 2024, section 3.3; Ren et al., ATC 2021, section 4; Rajbhandari et
al., SC 2021, section 5.)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from costmodel.data_parallel import DataParallel
from costmodel.machine import Machine
from costmodel.offload import Offload
from costmodel.step_work import optimizer_bytes
from profiles.job import OPTIMIZERS
from profiles.precision import Format, Precision
from profiles.units import GB

Array = NDArray[Any]

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


def waits(
    *,
    saved_away_bytes: Array,
    weight_bytes: Array,
    gradient_bytes: Array,
    forward_s: Array,
    backward_s: Array,
    parallel: DataParallel,
    offload: Offload,
    machine: Machine,
) -> Waits:
    """What one micro-batch's passes through a stage, of *forward_s* and *backward_s*,
    wait for. *weight_bytes* and *gradient_bytes* are those of a rank's shard."""
    rate = copy_rate(parallel, offload, machine)
    fetched = weight_bytes if offload.parameters else np.zeros(())
    sent = np.where(parallel.zero >= 2, gradient_bytes, 0.0) * offload.optimizer
    hides = "offload" in machine.software.overlap
    return Waits(
        forward_s=_beyond(forward_s * hides, saved_away_bytes, fetched, rate),
        backward_s=_beyond(backward_s * hides, sent, saved_away_bytes + fetched, rate),
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
) -> HostStep:
    """The step of an optimizer on the host, over a rank's shard of *parameters*.

    *backward_s* is the last pass, behind which gradients start to leave (below ZeRO-2;
    from there on they are already gone).
    """
    shard = parameters / parallel.shard_of(1)
    rate = copy_rate(parallel, offload, machine)
    hides = "offload" in machine.software.overlap
    leaving = np.where(parallel.zero < 2, shard * precision.gradient.bytes, 0.0)
    out_s = _beyond(backward_s * hides, leaving, np.zeros(()), rate)
    back = 0.0 if offload.parameters else precision.parameter.bytes
    back_s = shard * back / rate
    update_s = update_on_host_s(parameters, parallel, precision, machine, optimizer)
    if offload.tier == "nvme":
        moments = OPTIMIZERS[optimizer]
        state = precision.master_bytes + moments * Format.FP32.bytes
        streamed = 2 * shard * state / copy_rate(parallel, offload, machine)
        update_s = np.maximum(update_s, streamed)
    copies = np.asarray(out_s + back_s)
    return HostStep(seconds=np.asarray(update_s + copies), copies_s=copies)


def update_on_host_s(
    parameters: Array,
    parallel: DataParallel,
    precision: Precision,
    machine: Machine,
    optimizer: str,
) -> Array:
    """The update itself: bytes at what the ranks of a node share of its memory."""
    moved = optimizer_bytes(parameters, parallel, precision, OPTIMIZERS[optimizer])
    return moved / (HOST_UPDATE_BYTES_PER_S / on_node(parallel, machine))


def copy_rate(parallel: DataParallel, offload: Offload, machine: Machine) -> Array:
    """Bytes a second of one rank to the tier, one way."""
    link = machine.device.host_link.si * HOST_LINK_FRACTION
    if offload.tier == "nvme":
        return np.minimum(link, NVME_BYTES_PER_S / on_node(parallel, machine))
    return np.asarray(link)


def on_node(parallel: DataParallel, machine: Machine) -> Array:
    """How many ranks share a host."""
    return np.minimum(parallel.ranks, machine.island.devices_per_node)


def _beyond(pass_s: Array, out_bytes: Array, in_bytes: Array, rate: Array) -> Array:
    busiest = np.maximum(out_bytes, in_bytes) / rate
    return np.asarray(np.maximum(busiest - pass_s, 0.0))
