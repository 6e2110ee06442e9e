"""From one placement on a mesh to another: the collectives, axis by axis.

A placement says for each mesh axis what becomes of a tensor there: the name of the
dimension that is split along it, `whole`, or `partial` (each rank has a summand). It is
DTensor's Shard, Replicate and Partial with names for numbers, and as DTensor does,
`redistribution` changes one axis after another: first what makes the tensor smaller.

    whole → split       slice, free         partial → whole    all-reduce
    partial → split     reduce-scatter      split → whole      all-gather
    split → otherwise   all-to-all
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from costmodel.layout import Placed, split
from costmodel.machine import MeshAxis
from costmodel.operators.sharding import redistribute

_ORDER = (None, "reduce_scatter", "all_to_all", "all_reduce", "all_gather")


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One collective over one axis; bytes as the price of its kind takes them."""

    kind: str
    axis: MeshAxis
    size_bytes: float


def redistribution(
    have: Placed, want: Placed, axes: tuple[MeshAxis, ...], size_bytes: float
) -> tuple[Step, ...]:
    """What turns *have* into *want*, of a tensor of *size_bytes* over the whole mesh.

    >>> from costmodel.machine.topology import mesh_axes
    >>> mesh = mesh_axes(dp=2, tp=4)
    >>> for step in redistribution(
    ...     ("batch", "partial"), ("batch", "sequence"), mesh, size_bytes=1024.0
    ... ):
    ...     print(step.kind, step.axis.name, step.size_bytes)
    reduce_scatter tp 512.0
    """
    now, steps = list(have), []
    kinds = [redistribute(*pair) for pair in zip(have, want, strict=True)]
    for index in sorted(range(len(axes)), key=lambda one: _ORDER.index(kinds[one])):
        kind, axis = kinds[index], axes[index]
        if kind is not None and axis.size > 1:
            others = _shards(now, axes) // (axis.size if split(now[index]) else 1)
            held = size_bytes / others
            if kind == "all_to_all":
                held /= axis.size
            steps.append(Step(kind=kind, axis=axis, size_bytes=held))
        now[index] = want[index]
    return tuple(steps)


def local_bytes(placed: Placed, axes: tuple[MeshAxis, ...], size_bytes: float) -> float:
    """What one rank holds of a tensor of *size_bytes*."""
    return size_bytes / _shards(list(placed), axes)


def _shards(placed: list[str], axes: tuple[MeshAxis, ...]) -> int:
    words = zip(placed, axes, strict=True)
    return prod(axis.size for word, axis in words if split(word))
