"""The operands of each kind of operator, dealt from an arena."""

from __future__ import annotations

from collections.abc import Callable

from profiles.measure.arena import Arena
from profiles.measure.kernel import Operands
from profiles.measure.tasks import Operation

# How many operands come from other operators, where that is not one.
ACTIVATIONS = {
    "swiglu": 2,
    "geglu": 2,
    "reglu": 2,
    "residual": 2,
    "dropout-residual": 2,
    "attention": 3,
}

Make = Callable[[], Operands]


def operands(operation: Operation, arena: Arena) -> Make:
    """Makes fresh operands: activations first, then parameters, then plain values."""
    special = _SPECIAL.get(operation.kind)
    if special is not None:
        return special(operation, arena)
    count = ACTIVATIONS.get(operation.kind, 1)
    return lambda: tuple(arena.leaf(*operation.shape) for _ in range(count))


def _product(operation: Operation, arena: Arena) -> Make:
    rows, columns, contracted = operation.shape
    bias = [columns] if operation.variant == "bias" else []
    return lambda: (
        arena.leaf(rows, contracted),
        arena.leaf(columns, contracted),
        *map(arena.leaf, bias),
    )


def _grouped(operation: Operation, arena: Arena) -> Make:
    rows, experts, columns, contracted = operation.shape
    bias = [(experts, columns)] if operation.variant == "bias" else []
    return lambda: (
        arena.leaf(rows, contracted),
        arena.leaf(experts, columns, contracted),
        *(arena.leaf(*shape) for shape in bias),
    )


def _top_k(operation: Operation, arena: Arena) -> Make:
    rows, experts, chosen = operation.shape
    return lambda: (arena.leaf(rows, experts), chosen)


def _dispatch(operation: Operation, arena: Arena) -> Make:
    """Tokens, and which of as many experts each goes to."""
    rows, chosen, width = operation.shape
    (experts,) = operation.pieces
    return lambda: (
        arena.leaf(rows // chosen, width),
        arena.numbers(experts, rows),
        experts,
    )


def _combine(operation: Operation, arena: Arena) -> Make:
    rows, chosen, width = operation.shape
    return lambda: (
        arena.leaf(rows, width),
        arena.numbers(rows, rows).argsort(),
        arena.leaf(rows // chosen, chosen),
    )


def _permute(operation: Operation, arena: Arena) -> Make:
    (rows, width), (experts,) = operation.shape, operation.pieces
    return lambda: (arena.leaf(rows, width), arena.numbers(experts, rows))


def _unpermute(operation: Operation, arena: Arena) -> Make:
    rows, width = operation.shape
    return lambda: (arena.leaf(rows, width), arena.numbers(rows, rows).argsort())


def _attention(operation: Operation, arena: Arena) -> Make:
    batch, heads, kv_heads, seq_len, head_dim = operation.shape
    if operation.variant == "separate":
        counts = (heads, kv_heads, kv_heads)
        return lambda: [arena.leaf(batch, seq_len, one, head_dim) for one in counts]
    width = (heads + 2 * kv_heads) * head_dim
    return lambda: (arena.leaf(batch, seq_len, width), heads // kv_heads, head_dim)


def _rotary(operation: Operation, arena: Arena) -> Make:
    batch, seq_len, both, head_dim = operation.shape
    (kv_heads,) = operation.pieces
    width = (both + kv_heads) * head_dim
    angle = arena.deal(seq_len, head_dim)
    queries = (both - kv_heads) // kv_heads
    return lambda: (arena.leaf(batch, seq_len, width), queries, head_dim, angle, angle)


def _norm(operation: Operation, arena: Arena) -> Make:
    width = operation.shape[-1]
    rms = "rmsnorm" in (operation.kind, operation.variant)
    vectors = [width] * (1 if rms else 2)
    return lambda: (arena.leaf(*operation.shape), *map(arena.leaf, vectors))


def _lookup(operation: Operation, arena: Arena) -> Make:
    rows, table, width = operation.shape
    return lambda: (arena.numbers(table, rows), arena.leaf(table, width))


def _positions(operation: Operation, arena: Arena) -> Make:
    (rows, width), (seq_len, places) = operation.shape, operation.pieces
    return lambda: (
        arena.leaf(rows // seq_len, seq_len, width),
        arena.leaf(places, width),
    )


def _loss(operation: Operation, arena: Arena) -> Make:
    rows, columns = operation.shape
    return lambda: (arena.leaf(rows, columns), arena.numbers(columns, rows))


_SPECIAL: dict[str, Callable[[Operation, Arena], Make]] = {
    "matmul": _product,
    "attention": _attention,
    "rotary": _rotary,
    "layernorm": _norm,
    "rmsnorm": _norm,
    "qk-norm": _norm,
    "lookup": _lookup,
    "positions": _positions,
    "cross-entropy": _loss,
    "grouped-matmul": _grouped,
    "top-k": _top_k,
    "dispatch": _dispatch,
    "combine": _combine,
    "permute": _permute,
    "unpermute": _unpermute,
}
