"""Which ranks form which group, and over which links each group speaks.

Ranks are numbered as Megatron does: tp fastest, then cp, then data parallelism (the
shard group before its replicas), then the pipeline. A group whose members lie *stride*
apart has `domain // stride` of them in one fast domain (a node, or an NVL72 rack).

`MeshAxis`: a named axis of a mesh of devices, and over which links it speaks.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from math import prod

import numpy as np

from costmodel.machine.assembly import Machine
from profiles.arrays import Array
from profiles.errors import InvalidSpec
from profiles.hardware import Island


def near_members(stride: Array, size: Array, island: Island) -> Array:
    """How many members of a group of *size* share a fast domain.

    The largest divisor of *size* that fits, so that every domain holds as many.
    """
    size = np.asarray(size)
    room = np.maximum(island.domain // np.maximum(np.asarray(stride), 1), 1)
    return _largest_divisor(size, np.minimum(room, size))


def _largest_divisor(size: Array, most: Array) -> Array:
    """Largest divisor of *size* that is at most *most*, elementwise."""
    if np.all(size % most == 0):  # as nearly always: powers of two
        return np.asarray(most)
    found: Array = np.ones(np.broadcast(size, most).shape, dtype=np.int64)
    for candidate in range(2, int(np.max(most, initial=1)) + 1):
        fits = (size % candidate == 0) & (candidate <= most)
        found = np.where(fits, candidate, found)
    return found


def always_crosses(stride: Array, island: Island) -> Array:
    """Whether all neighbours of a pipeline *stride* apart lie in unlike domains."""
    return np.asarray(stride) >= island.domain


def changes_rail(stride: Array, island: Island) -> Array:
    """Whether what pipeline ranks *stride* apart send from domain to domain is for
    another rail than the sender's, where rails are all that joins domains."""
    off = np.asarray(stride) % island.domain != 0
    return np.asarray(off & island.levels[-1].rails)


def shares(stride: Array, island: Island) -> Array:
    """A transfer's part of what leaves a domain, in shares of one device.

    Of pipeline ranks *stride* apart as many pairs speak at once as lie side by side in
    a domain; the others send at other times, or inside. Each has one port at most.
    """
    pairs = np.minimum(np.asarray(stride), island.domain)
    ports = island.levels[-1].ports or island.domain
    return np.asarray(island.domain / np.maximum(pairs, ports))


@dataclass(frozen=True, slots=True, kw_only=True)
class MeshAxis:
    """*size* devices that lie *stride* ranks apart."""

    name: str
    size: int
    stride: int = 1


def mesh_axes(**sizes: int) -> tuple[MeshAxis, ...]:
    """The axes of a mesh, outermost first: the last one's devices are neighbours.

    Raises InvalidSpec for an axis of less than one device.

    >>> [(axis.name, axis.size, axis.stride) for axis in mesh_axes(dp=4, tp=8)]
    [('dp', 4, 8), ('tp', 8, 1)]
    """
    axes = []
    for index, (name, size) in enumerate(sizes.items()):
        if size < 1:
            raise InvalidSpec(f"mesh axis {name}={size} has no device; give 1 or more")
        inner = prod(list(sizes.values())[index + 1 :])
        axes.append(MeshAxis(name=name, size=size, stride=inner))
    return tuple(axes)


def joint(axes: tuple[MeshAxis, ...]) -> MeshAxis:
    """Several axes as one group of ranks; those that are not neighbours in the mesh
    are taken to lie as far apart as the innermost.

    >>> joint(mesh_axes(dp=4, tp=8))
    MeshAxis(name='dp+tp', size=32, stride=1)
    """
    assert all(a.stride > b.stride for a, b in pairwise(axes)), "outermost first"
    return MeshAxis(
        name="+".join(axis.name for axis in axes),
        size=prod(axis.size for axis in axes),
        stride=axes[-1].stride,
    )


def exchange_s(kind: str, size_bytes: float, axis: MeshAxis, machine: Machine) -> float:
    """Seconds of a collective over *axis*; *size_bytes* as `Machine.collective` has
    it: of the full tensor, of an all-to-all what one rank holds."""
    near = near_members(np.asarray(axis.stride), np.asarray(axis.size), machine.island)
    taken = machine.collective_s(
        kind, np.asarray(size_bytes), ranks=np.asarray(axis.size), near=near
    )
    return float(taken)
