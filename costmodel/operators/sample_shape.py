"""What an operator is on one rank, in the words of a sample key."""

from __future__ import annotations

from typing import Any, cast

import numpy as np

from costmodel.layout import Placement
from costmodel.operators.degrees import (
    Degrees,
    held_experts,
    routed_rows,
    sent_rows,
    tokens,
)
from costmodel.operators.sharding import extent, has_whole_weight, made, natural
from profiles.arrays import Array
from profiles.models import Block, Kind, Operator, Tensor
from profiles.samples import operator_shape


def local_shape(
    operator: Operator, block: Block, degrees: Degrees
) -> tuple[str, tuple[Any, ...]]:
    """The kind, and the dimensions as arrays over *degrees*, of an operator's sample.

    The clocks name what they measure by the same `operator_shape`.
    """
    return operator_shape(
        operator,
        block,
        batch=cast(int, degrees.micro_batch),
        rows=cast(int, _rows(operator, block, degrees)),
        extent=lambda name: cast(int, extent(name, block, degrees)),
        held=cast(int, _held(block, degrees)),
    )


def _held(block: Block, degrees: Degrees) -> Any:
    return held_experts(block, degrees) if "experts" in block.extents else 1


def _rows(operator: Operator, block: Block, degrees: Degrees) -> Array:
    if operator.kind in (Kind.DISPATCH, Kind.COMBINE):
        return sent_rows(block, degrees)
    if "routed" in worked_on(operator).dims:
        return routed_rows(block, degrees)
    return tokens(degrees, split=splits_rows(operator, degrees))


def splits_rows(operator: Operator, degrees: Degrees) -> bool:
    """Whether it works on a tp rank's own rows, or on those of the whole group."""
    if operator.kind is Kind.MATMUL:  # gathered before, or scattered after, unless
        return degrees.sequence_parallel and has_whole_weight(operator)
    if made(operator, degrees.sequence_parallel) is Placement.PARTIAL:
        return False
    placed = natural(worked_on(operator), sequence_parallel=degrees.sequence_parallel)
    return placed is Placement.SEQUENCE


def worked_on(operator: Operator) -> Tensor:
    """The tensor whose elements an operator goes through."""
    reads = operator.kind is Kind.CROSS_ENTROPY
    return operator.inputs[0] if reads else operator.output


def is_whole(block: Block, degrees: Degrees) -> Any:
    """Where attention is that of its sample, or a share of it: causal, no window."""
    window = min(block.window or degrees.seq_len, degrees.seq_len)
    alike = block.causal and window == degrees.seq_len and degrees.flash_attention
    return np.asarray(alike)
