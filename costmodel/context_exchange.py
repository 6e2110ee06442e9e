"""What context parallelism sends for the core of attention: one rule, two readers.

ring         forward: keys and values to the next rank, cp − 1 times; backward: those
             and their gradients (Liu et al., 2023)
all-gather   keys and values gathered before each pass, their gradients
             reduce-scattered after (Llama 3, section 3.3.2)
ulysses      all-to-all of queries, keys and values and of the output, and of their
             gradients (Jacobs et al., 2023); key-value heads fewer than cp are
             repeated, so that each rank has one
rsa          keys go round for whole rows of scores, then values; backward: both again,
             and their gradients, made over the whole sequence, are all-reduced (ring
             self-attention, Li et al., ACL 2023, section 3.2): 8(cp − 1)·b·s/cp·h
             elements a layer
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from costmodel.degrees import Degrees, tokens
from costmodel.sharding import extent
from profiles.graph import Block
from profiles.precision import Precision

Array = NDArray[Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """A collective over the cp axis, or a send to the next rank, so many times.

    `size_bytes` is of the full tensor; of an all-to-all or a send, what a rank holds.
    """

    kind: str
    size_bytes: Array
    times: Array


def messages(
    direction: str, block: Block, degrees: Degrees, precision: Precision
) -> tuple[Message, ...]:
    """What a rank of cp > 1 sends in a pass, "forward" or "backward"."""
    cp, forward = degrees.cp, direction == "forward"
    width = extent("key_value", block, degrees) * precision.activation.bytes
    local = tokens(degrees, split=False)
    if degrees.cp_kind == "ring":
        return (_message("send", local * width, (cp - 1) * (1 if forward else 2)),)
    if degrees.cp_kind == "all-gather":
        kinds = ("all_gather",) if forward else ("all_gather", "reduce_scatter")
        return tuple(_message(kind, local * cp * width) for kind in kinds)
    if degrees.cp_kind == "rsa":
        round_twice = _message("send", local * width / 2, 2 * (cp - 1))
        summed = _message("all_reduce", local * cp * width / 2, 2)
        return (round_twice,) if forward else (round_twice, summed)
    query = extent("query", block, degrees) * precision.activation.bytes
    one_each = 2 * cp * block.head_dim * precision.activation.bytes
    packed = local * (query + np.maximum(width, one_each))
    return (_message("all_to_all", packed), _message("all_to_all", local * query))


def _message(kind: str, size_bytes: Any, times: Any = 1) -> Message:
    return Message(
        kind=kind, size_bytes=np.asarray(size_bytes), times=np.asarray(times)
    )
