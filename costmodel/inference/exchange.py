"""Seconds of a tp group's collectives in inference: NCCL's, or in one shot.

Sums of a few tokens are small, and NCCL's launches and hops are most of what they take.
Inside a domain of peer-to-peer links serving engines sum them in one kernel: a barrier,
every rank reads the tensor of every other one, a barrier (the one-shot all-reduce of
TensorRT-LLM, of vLLM's custom_all_reduce and of PyTorch's intra-node communication).

    one shot = a kernel + 2 hops + (k - 1) N / bandwidth      the lesser of both counts
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from costmodel.compute import traffic_s
from costmodel.machine import Machine
from costmodel.placement import near_members
from costmodel.sourced import Sourced

Array = NDArray[Any]
PEER_TO_PEER: Final = ("nvlink", "nvswitch", "xgmi")  # whose devices read each other


def exchanged(kind: str, size_bytes: Any, ranks: Array, machine: Machine) -> Sourced:
    """Seconds of a collective of *kind* over *ranks* that lie side by side."""
    island, links = machine.island, machine.links
    size = np.asarray(size_bytes, dtype=float)
    near = near_members(np.asarray(1), ranks, island)
    found = machine.collective(kind, size, ranks=ranks, near=near)
    inside = np.all(near == ranks) and island.levels[0].kind.lower() in PEER_TO_PEER
    if kind != "all_reduce" or not inside:
        return found
    bandwidth = links.inner_bytes_per_s * links.inner.fraction
    kernel_s = traffic_s(2 * size, device=machine.device, rates=machine.rates)
    shot_s = kernel_s + 2 * links.inner.hop_s + (ranks - 1) * size / bandwidth
    return Sourced(seconds=np.where(ranks > 1, np.minimum(found.seconds, shot_s), 0.0))
