"""How much memory an operation touches and holds, about."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from profiles.measure.tasks import Exchange, Operation

ROOM = 3.0  # how many of the largest operators, or caches, an arena has room for
LARGEST_PART = 1 / 8  # of a rank's memory, for one arena


def arena_bytes(
    operations: Sequence[Operation],
    exchanges: Sequence[Exchange],
    *,
    cache_bytes: float,
    memory_bytes: float,
) -> float:
    """Room for the largest operands without dealing any of them twice, if it fits."""
    largest = [4 * work(one) for one in operations if len(one.shape) > 1]
    moved = [2.0 * one.size_bytes for one in exchanges]
    wanted = max([ROOM * max([*largest, cache_bytes]), *moved])
    return min(wanted, max(memory_bytes * LARGEST_PART, cache_bytes))


def flops(operation: Operation) -> float:
    """FLOPs of one pass of a product or of attention; nothing for what moves bytes."""
    if operation.kind == "matmul":
        return 2.0 * prod(operation.shape)
    if operation.kind == "grouped-matmul":
        rows, _, columns, contracted = operation.shape
        return 2.0 * rows * columns * contracted
    if operation.kind == "attention":
        batch, heads, _, seq_len, head_dim = operation.shape
        return 2.0 * batch * heads * seq_len**2 * head_dim  # half of them masked
    return 0.0


def held_bytes(operation: Operation) -> float:
    """Bytes that measuring an operation takes at once, about.

    An optimizer holds the weight, its gradient and two moments, a layer's operator its
    operands, what it makes, and their gradients; each with as much again to spare.
    """
    return 4.0 * 4.0 * work(operation)


def work(operation: Operation) -> float:
    """Elements that a call reads and writes, about: its share of an arena."""
    shape = operation.shape
    if operation.kind == "matmul":
        rows, columns, contracted = shape
        return float(rows * columns + rows * contracted + columns * contracted)
    if operation.kind == "grouped-matmul":
        rows, experts, columns, contracted = shape
        weights = experts * columns * contracted
        return float(rows * columns + rows * contracted + weights)
    if operation.kind == "top-k":
        return 3.0 * shape[0] * shape[1]
    if operation.kind in ("dispatch", "combine"):
        return 3.0 * shape[0] * shape[2]
    if operation.kind == "attention":
        batch, heads, kv_heads, seq_len, head_dim = shape
        return 2.0 * batch * seq_len * (heads + kv_heads) * head_dim
    if operation.kind == "lookup":
        rows, table, width = shape
        return float((rows + table) * width)
    return 3.0 * prod(shape)  # two operands and what is made of them
