"""What becomes of a tensor on a mesh axis, in a word.

The name of the dimension that is split along it, `whole`, or `partial`: each rank has a
summand. It is DTensor's Shard, Replicate and Partial with names for numbers.
"""

from __future__ import annotations

from enum import StrEnum


class Placement(StrEnum):
    """Where a tensor lies on the tensor-parallel axis."""

    WHOLE = "whole"  # every rank has all of it
    SEQUENCE = "sequence"  # split along the sequence
    WIDTH = "width"  # split along heads, ffn or vocab
    PARTIAL = "partial"  # every rank has a summand
    ROUTED = "routed"  # with the expert that each row goes to


Placed = tuple[str, ...]  # one word a mesh axis
WHOLE, PARTIAL = Placement.WHOLE.value, Placement.PARTIAL.value


def split(word: str) -> bool:
    """Whether a placement's word names a dimension."""
    return word not in (WHOLE, PARTIAL)


def settled(placed: Placed) -> Placed:
    """A placement whose sums are done: also where the gradient of a tensor lies that
    is handed on so."""
    return tuple(WHOLE if word == PARTIAL else word for word in placed)
