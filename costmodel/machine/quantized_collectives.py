"""What ZeRO++ sends: weights and gradients as blocks of small integers.

    gathered   INT8 blocks and their scales, over all shards        → blocks_gathered
    reduced    INT4 blocks inside each domain, where each rank then sums 1/r of them;
               the sums as INT4 blocks between domains, r times fewer
                                                                    → blocks_reduced

Values and scales travel apart. Who makes blocks of numbers and numbers of blocks moves
bytes of the device's memory (`conversion_bytes`). DeepSpeed reduces so between domains
alone: inside one it scatters what was made.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from costmodel.machine.assembly import Machine
from costmodel.machine.provenance import Sourced
from costmodel.machine.topology import near_members
from profiles.arrays import Array
from profiles.hardware import Format

INT8_BYTES: Final = 1.0
INT4_BYTES: Final = 0.5
# Numbers with a scale in common: DeepSpeed's quantizer aims at 4 to 8 thousand, and
# takes about a row of a matrix for gradients.
BLOCK: Final = 4096
SCALE_BYTES: Final = Format.FP32.bytes / BLOCK


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """*ranks* that share shards, *stride* apart; *near* of them in a fast domain."""

    ranks: Array
    stride: Array
    near: Array

    @property
    def across(self) -> Array:
        """How many domains it spans."""
        return np.asarray(self.ranks // self.near)


def blocks_gathered(
    count: Array, group: Group, machine: Machine, *, pieces: Any
) -> Sourced:
    """*count* numbers in blocks of INT8, whole on every rank afterwards."""

    def gather(size_bytes: Array) -> Sourced:
        return machine.collective(
            "all_gather",
            size_bytes,
            ranks=group.ranks,
            near=group.near,
            pieces=pieces,
        )

    return gather(count * INT8_BYTES) + gather(count * SCALE_BYTES)


def blocks_reduced(
    count: Array, group: Group, machine: Machine, *, pieces: Any
) -> Sourced:
    """*count* numbers of each rank in blocks of INT4, their sums shared out."""
    r, across = group.near, group.across
    far = near_members(group.stride * r, across, machine.island)

    def exchange(numbers: Array, ranks: Array, near: Array) -> Sourced:
        values, scales = (
            machine.collective(
                "all_to_all", numbers * each, ranks=ranks, near=near, pieces=pieces
            )
            for each in (INT4_BYTES, SCALE_BYTES)
        )
        return values + scales

    return exchange(count, r, r) + exchange(count / r, across, far)


def gathering_bytes(count: Array, group: Group, number_bytes: float) -> Array:
    """Bytes of memory that blocks of *count* weights move on a rank: its shard is made
    blocks of, and what has come numbers."""
    block = INT8_BYTES + SCALE_BYTES
    return np.asarray((count / group.ranks + count) * (number_bytes + block))


def reducing_bytes(count: Array, group: Group, number_bytes: float) -> Array:
    """The same of *count* gradients: blocks are made; those of the domain are read and
    their sums written as blocks; those of other domains are made numbers, and added."""
    block = INT4_BYTES + SCALE_BYTES
    made, read = number_bytes + block, block
    summed = block + block + 2 * number_bytes
    return np.asarray(count * (made + read) + count / group.near * summed)
