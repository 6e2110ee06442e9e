"""`MeshAxis`: a named axis of a mesh of devices, and over which links it speaks."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from math import prod

import numpy as np

from costmodel.machine.assembly import Machine
from costmodel.machine.topology import near_members
from profiles.errors import InvalidSpec


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
