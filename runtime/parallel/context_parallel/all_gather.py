"""Attention to gathered keys and values (Llama 3, section 3.3.2).

Each rank gathers all keys and values, puts them in the order of the sequence, and
attends with its two chunks of queries: to the keys before a chunk, and to the chunk's
own under the mask. They are not kept: backward gathers them once more, and scatters
their gradient.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from runtime.models import autocast
from runtime.parallel.collectives import Group, start_all_gather, start_reduce_scatter
from runtime.parallel.context_parallel.blockwise import Merged, block, block_backward

TOKENS = 3  # the dimension of (keys and values, batch, kv_heads, tokens, head_dim)


class GatheredCore(nn.Module):
    """The core of attention, over the ranks of *group*."""

    def __init__(self, group: Group) -> None:
        super().__init__()
        self.group = group

    def forward(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        mixed: Tensor = _Gathered.apply(*autocast(query, key, value), self.group)  # type: ignore[no-untyped-call]
        return mixed


def in_order(pieces: Tensor, ranks: int) -> Tensor:
    """Ranks' zig-zag pieces, side by side along the tokens, in the sequence's order."""
    chunks = pieces.unflatten(TOKENS, (ranks, 2, -1))
    head, tail = chunks.unbind(TOKENS + 1)
    return torch.cat((head, tail.flip(TOKENS)), TOKENS).flatten(TOKENS, TOKENS + 1)


def in_pieces(ordered: Tensor, ranks: int) -> Tensor:
    """The inverse of `in_order`."""
    head, tail = ordered.unflatten(TOKENS, (2, ranks, -1)).unbind(TOKENS)
    pieces = torch.stack((head, tail.flip(TOKENS)), TOKENS + 1)
    return pieces.flatten(TOKENS, TOKENS + 2)


def _blocks(tokens: int, group: Group) -> Iterator[tuple[slice, slice, bool]]:
    """Which queries see which keys, and whether under the mask."""
    chunk = tokens // 2
    for half, number in enumerate((group.rank(), 2 * group.size() - 1 - group.rank())):
        rows = slice(half * chunk, (half + 1) * chunk)
        first = number * chunk
        yield rows, slice(first, first + chunk), True
        if first:
            yield rows, slice(0, first), False


def _gathered(key: Tensor, value: Tensor, group: Group) -> Tensor:
    own = torch.stack((key, value))
    return in_order(start_all_gather(own, group, dim=TOKENS).wait(), group.size())


class _Gathered(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, query: Tensor, key: Tensor, value: Tensor, group: Group
    ) -> Tensor:
        every, merged = _gathered(key, value, group), Merged(query)
        for rows, columns, causal in _blocks(query.shape[2], group):
            keys, values = every[:, :, :, columns]
            made = block(query[:, :, rows], keys, values, causal=causal)
            merged.add(made, rows)
        output, lse = merged.result()
        ctx.save_for_backward(query, key, value, output, lse)
        ctx.group = group
        return output

    @staticmethod
    def backward(ctx: Any, *made: Tensor) -> tuple[Tensor | None, ...]:
        query, key, value, output, lse = ctx.saved_tensors
        every = _gathered(key, value, ctx.group)
        of_query = torch.zeros_like(query, dtype=torch.float32)
        of_every = torch.zeros_like(every)
        for rows, columns, causal in _blocks(query.shape[2], ctx.group):
            keys, values = every[:, :, :, columns]
            found = block_backward(
                *(made[0][:, :, rows], query[:, :, rows], keys, values),
                *(output[:, :, rows], lse[:, :, rows]),
                causal=causal,
            )
            of_query[:, :, rows] += found[0]
            of_every[:, :, :, columns] += torch.stack(found[1:])
        pieces = in_pieces(of_every, ctx.group.size())
        summed = start_reduce_scatter(pieces, ctx.group, dim=TOKENS).wait()
        return of_query.to(query.dtype), summed[0], summed[1], None
