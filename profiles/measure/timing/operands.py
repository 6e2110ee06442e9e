"""The operands of each kind of operator, dealt from an `Arena` that no cache holds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from math import prod

from profiles.measure.timing.tasks import (
    Device,
    DType,
    Exchange,
    Operands,
    Operation,
    Tensor,
)
from profiles.measure.timing.windows import POOLS, Convolution, one_pool
from profiles.samples import ATTENTION, CONVOLUTIONS
from profiles.units import MiB

BLOCK_BYTES = 8 * MiB  # below glibc's largest threshold: from the heap
LINE = 64  # elements between pieces: no two share a cache line


class Arena:
    """Deals tensors of one dtype out of one block, round and round; *blank* ones are
    zeros."""

    def __init__(
        self, size: int, dtype: DType, device: Device, *, blank: bool = False
    ) -> None:
        import torch

        seed = torch.Generator().manual_seed(0)
        some = torch.randn(min(size, MiB), generator=seed).to(dtype)
        if blank:
            some.zero_()
        self.block = some.to(device).repeat(-(-size // len(some)))[:size]
        self.used = 0

    @property
    def bytes(self) -> int:
        return self.block.numel() * self.block.element_size()

    def deal(self, *shape: int) -> Tensor:
        """The next piece, as a contiguous tensor of *shape*; larger ones are made of
        whole blocks: products of zeros take a GPU less time."""
        size = prod(shape)
        if size > len(self.block):
            blocks = -(-size // len(self.block))
            return self.block.repeat(blocks)[:size].view(shape)
        if self.used + size > len(self.block):
            self.used = 0
        piece = self.block[self.used : self.used + size].view(shape)
        self.used += -(-size // LINE) * LINE
        return piece

    def leaf(self, *shape: int, wanted: bool = True) -> Tensor:
        """A piece that a gradient is *wanted* for."""
        return self.deal(*shape).detach().requires_grad_(wanted)

    def numbers(self, below: int, count: int) -> Tensor:
        """*count* random whole numbers: tokens, or targets."""
        import torch

        return torch.randint(below, (count,), device=self.block.device)

    def forget(self, size_bytes: float) -> None:
        """Read so much of the block that the caches hold nothing else."""
        size = min(int(size_bytes / self.block.element_size()), len(self.block))
        piece = self.deal(size)
        if piece.element_size() == 1:  # 8-bit floats have no sum
            import torch

            piece = piece.view(torch.uint8)
        piece.sum()


def touch_heap(size_bytes: float) -> None:
    """Make so much of the allocator's memory present, as it is once training runs.

    A page's first touch costs microseconds, in a virtual machine tens of them; training
    pays that in its first steps only.
    """
    import torch

    count = int(size_bytes // BLOCK_BYTES)
    blocks = [torch.ones(BLOCK_BYTES, dtype=torch.uint8) for _ in range(count)]
    blocks.clear()


ROOM = 3.0  # how many of the largest operators, or caches, an arena has room for


def arena_bytes(
    operations: Sequence[Operation],
    exchanges: Sequence[Exchange],
    *,
    cache_bytes: float,
    most_bytes: float,
) -> float:
    """Room for the largest operands without dealing any of them twice, if it fits in
    *most_bytes*; a cache's at least."""
    largest = [4 * work(one) for one in operations if len(one.shape) > 1]
    moved = [2.0 * one.size_bytes for one in exchanges]
    wanted = max([ROOM * max([*largest, cache_bytes]), *moved])
    return min(wanted, max(most_bytes, cache_bytes))


def flops(operation: Operation) -> float:
    """FLOPs of one pass of a product or of attention; nothing for what moves bytes."""
    if operation.kind in ("matmul", "grouped-matmul"):
        return 2.0 * operation.shape[0] * prod(operation.shape[-2:])
    if operation.kind in ATTENTION:
        batch, heads, _, seq_len, head_dim = operation.shape
        masked = 2 if operation.kind == "attention" else 1
        return 4.0 * batch * heads * seq_len**2 * head_dim / masked
    if operation.kind in CONVOLUTIONS:
        one = Convolution.of(operation.shape)
        least = min(prod(one.sides), prod(one.made_sides)) if one.turned else 0
        positions = least or prod(one.made_sides)
        return 2.0 * one.batch * positions * prod(one.weight)
    return 0.0


def held_bytes(operation: Operation) -> float:
    """Bytes that measuring an operation takes at once, about.

    An optimizer holds the weight, its gradient and two moments, a layer's operator its
    operands, what it makes, and their gradients; each with as much again to spare.
    """
    return 4.0 * 4.0 * work(operation)


def work(operation: Operation) -> float:
    """Elements that a call reads and writes, about: its share of an arena."""
    shape, kind = operation.shape, operation.kind
    if kind in ("matmul", "grouped-matmul"):
        rows, *experts, columns, contracted = shape
        weights = prod((*experts, columns, contracted))
        return float(rows * columns + rows * contracted + weights)
    if kind == "top-k":
        return 3.0 * shape[0] * shape[1]
    if kind in ("dispatch", "combine"):
        return 3.0 * shape[0] * shape[2]
    if kind in CONVOLUTIONS:
        one = Convolution.of(shape)
        return float(prod(one.given) + prod(one.made) + prod(one.weight))
    if kind in POOLS:
        return 2.0 * shape[0] * shape[1] * prod(shape[2 : 2 + len(shape) // 3])
    if kind == "embedding-bag":
        batch, bag, table, width = shape
        return float((batch * bag + table) * width)
    if kind in ATTENTION:
        batch, heads, kv_heads, seq_len, head_dim = shape
        return 2.0 * batch * seq_len * (heads + kv_heads) * head_dim
    if kind == "lookup":
        rows, table, width = shape
        return float((rows + table) * width)
    return 3.0 * prod(shape)  # two operands and what is made of them


# How many operands come from other operators, where that is not one.
ACTIVATIONS = {
    **dict.fromkeys(("swiglu", "geglu", "reglu", "residual", "dropout-residual"), 2),
    "product": 2,
    **dict.fromkeys(ATTENTION, 3),
}

Make = Callable[[], Operands]


def operands(operation: Operation, arena: Arena) -> Make:
    """Makes fresh operands: activations first, then parameters, then plain values."""
    kind, shape = operation.kind, operation.shape
    if kind in ("matmul", "grouped-matmul"):
        return _product(operation, arena)
    if kind in ATTENTION:
        return _attention(operation, arena)
    if kind in CONVOLUTIONS:
        one = Convolution.of(shape)
        return lambda: (arena.leaf(*one.given), arena.leaf(*one.weight), one)
    if kind in POOLS:
        return lambda: (arena.leaf(*one_pool(shape)[0]), *one_pool(shape)[1:])
    if kind == "rotary":
        return _rotary(operation, arena)
    if kind in ("batchnorm", "groupnorm"):  # a row for each position, of channels
        rows, width = shape
        return lambda: (arena.leaf(1, width, rows), *map(arena.leaf, (width, width)))
    if kind in ("layernorm", "rmsnorm", "qk-norm"):
        vectors = 1 if "rmsnorm" in (kind, operation.variant) else 2
        return lambda: (arena.leaf(*shape), *map(arena.leaf, shape[-1:] * vectors))
    if kind in _BY_SIZES:
        return partial(_BY_SIZES[kind], arena, *shape, *operation.pieces)
    count = ACTIVATIONS.get(kind, 1)
    return lambda: tuple(arena.leaf(*shape) for _ in range(count))


def _product(operation: Operation, arena: Arena) -> Make:
    """Of experts each has a weight, and a bias."""
    rows, *experts, columns, contracted = operation.shape
    bias = [(*experts, columns)] if operation.variant == "bias" else []
    shapes = [(rows, contracted), (*experts, columns, contracted), *bias]
    return lambda: tuple(arena.leaf(*one) for one in shapes)


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


def _both_ways(places: Tensor) -> tuple[Tensor, Tensor]:
    """A permutation and its inverse."""
    return places, places.argsort()


# Operands from the sizes of a shape, and the pieces behind them.
_BY_SIZES: dict[str, Callable[..., Operands]] = {
    "embedding-bag": lambda arena, batch, bag, table, width: (
        arena.numbers(table, batch * bag).view(batch, bag),
        arena.leaf(table, width),
    ),
    "concatenation": lambda arena, rows, width: (
        arena.leaf(rows, width // 2),
        arena.leaf(rows, width - width // 2),
    ),
    "lookup": lambda arena, rows, table, width: (
        arena.numbers(table, rows),
        arena.leaf(table, width),
    ),
    "positions": lambda arena, rows, width, seq_len, places: (
        arena.leaf(rows // seq_len, seq_len, width),
        arena.leaf(places, width),
    ),
    "cross-entropy": lambda arena, rows, columns: (
        arena.leaf(rows, columns),
        arena.numbers(columns, rows),
    ),
    "top-k": lambda arena, rows, experts, chosen: (arena.leaf(rows, experts), chosen),
    "dispatch": lambda arena, rows, chosen, width, experts: (
        arena.leaf(rows // chosen, width),
        arena.numbers(experts, rows),
        experts,
    ),
    "combine": lambda arena, rows, chosen, width: (
        arena.leaf(rows, width),
        *_both_ways(arena.numbers(rows, rows).argsort()),
        arena.leaf(rows // chosen, chosen),
    ),
    "permute": lambda arena, rows, width, experts: (
        arena.leaf(rows, width),
        arena.numbers(experts, rows),
    ),
    "unpermute": lambda arena, rows, width, *_: (
        arena.leaf(rows, width),
        arena.numbers(rows, rows).argsort(),
    ),
}
