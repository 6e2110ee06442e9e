"""DeepSpeed-Ulysses: from a part of the sequence to a part of the heads, and back.

    all-to-all of queries, keys and values     (n parts of the heads, one to each rank)
    causal attention over the whole sequence
    all-to-all of the output                   and both once more in backward

Key-value heads fewer than ranks are repeated, so that each rank gets one (Jacobs et
al., 2023, section 3).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from runtime.models import autocast
from runtime.parallel.collectives import Group, all_to_all
from runtime.parallel.context_parallel.blockwise import block, block_backward

HEADS, TOKENS = 1, 2  # dimensions of (batch, heads, tokens, head_dim)


class UlyssesCore(nn.Module):
    """The core of attention, over the ranks of *group*."""

    def __init__(self, group: Group) -> None:
        super().__init__()
        self.group = group

    def forward(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        mixed: Tensor = _Ulysses.apply(*autocast(query, key, value), self.group)  # type: ignore[no-untyped-call]
        return mixed


def _to_heads(parts: Sequence[Tensor], group: Group) -> list[Tensor]:
    """All tokens of this rank's share of each tensor's heads; one message for all."""
    ranks = group.size()
    shares = [one.unflatten(HEADS, (ranks, -1)).movedim(HEADS, 0) for one in parts]
    heads = [share.shape[2] for share in shares]
    came = all_to_all(torch.cat(shares, dim=2), group)
    return list(came.movedim(0, TOKENS).flatten(TOKENS, TOKENS + 1).split(heads, HEADS))


def _to_tokens(parts: Sequence[Tensor], group: Group) -> list[Tensor]:
    """The inverse of `_to_heads`."""
    ranks, heads = group.size(), [one.shape[HEADS] for one in parts]
    whole = torch.cat(list(parts), dim=HEADS)
    came = all_to_all(whole.unflatten(TOKENS, (ranks, -1)).movedim(TOKENS, 0), group)
    shares = came.split(heads, dim=2)
    return [share.movedim(0, HEADS).flatten(HEADS, HEADS + 1) for share in shares]


class _Ulysses(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, query: Tensor, key: Tensor, value: Tensor, group: Group
    ) -> Tensor:
        ctx.group, ctx.kv_heads = group, key.shape[HEADS]
        copies = max(1, group.size() // ctx.kv_heads)
        repeated = [one.repeat_interleave(copies, dim=HEADS) for one in (key, value)]
        given = _to_heads((query, *repeated), group)
        output, lse = block(*given, causal=True)
        ctx.save_for_backward(*given, output, lse)
        (mixed,) = _to_tokens((output,), group)
        return mixed

    @staticmethod
    def backward(ctx: Any, *made: Tensor) -> tuple[Tensor | None, ...]:
        query, key, value, output, lse = ctx.saved_tensors
        (gradient,) = _to_heads((made[0],), ctx.group)
        found = block_backward(gradient, query, key, value, output, lse, causal=True)
        of_query, *others = _to_tokens(found, ctx.group)
        of_key, of_value = (
            one.unflatten(HEADS, (ctx.kv_heads, -1)).sum(HEADS + 1) for one in others
        )
        return of_query, of_key, of_value, None
