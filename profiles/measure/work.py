"""How much memory an operation touches and holds, about."""

from __future__ import annotations

from math import prod

from profiles.measure.tasks import Operation


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
    if operation.kind == "attention":
        batch, heads, kv_heads, seq_len, head_dim = shape
        return 2.0 * batch * seq_len * (heads + kv_heads) * head_dim
    if operation.kind == "lookup":
        rows, table, width = shape
        return float((rows + table) * width)
    return 3.0 * prod(shape)  # two operands and what is made of them
