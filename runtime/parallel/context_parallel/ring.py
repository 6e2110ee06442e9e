"""Ring attention: keys and values go round while each rank attends to what is there.

    step 0       own keys, under the causal mask
    step i       those of rank r − i, not masked: of a rank before us (r − i ≥ 0) the
                 first half, else all of them, for the second half of our queries
    backward     the same round; the gradient of a rank's keys travels one step behind
                 them, and n − 1 steps bring it home

(Liu et al., 2023; with the zig-zag split every step is half of a square.)
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from runtime.models import autocast
from runtime.parallel.collectives import Group, start_shift
from runtime.parallel.context_parallel.blockwise import Merged, block, block_backward

ALL = slice(None)


class RingCore(nn.Module):
    """The core of attention, over the ranks of *group*."""

    def __init__(self, group: Group) -> None:
        super().__init__()
        self.group = group

    def forward(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        mixed: Tensor = _Ring.apply(*autocast(query, key, value), self.group)  # type: ignore[no-untyped-call]
        return mixed


class _Step(NamedTuple):
    """Keys and values that are here, and which queries see which of them."""

    keys: Tensor  # (2, batch, kv_heads, tokens, head_dim): of keys, of values
    rows: slice
    columns: slice
    causal: bool


def _round(own: Tensor, group: Group) -> Iterator[_Step]:
    """The steps of one round; the next keys travel while a step is carried out."""
    here, half = own, own.shape[3] // 2
    for number in range(group.size()):
        last = number == group.size() - 1
        coming = None if last else start_shift(here, group)
        if number == 0:
            yield _Step(here, ALL, ALL, causal=True)
        elif number <= group.rank():
            yield _Step(here, ALL, slice(0, half), causal=False)
        else:
            yield _Step(here, slice(half, None), ALL, causal=False)
        if coming is not None:
            here = coming.wait()


class _Ring(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, query: Tensor, key: Tensor, value: Tensor, group: Group
    ) -> Tensor:
        merged = Merged(query)
        for step in _round(torch.stack((key, value)), group):
            keys, values = step.keys[:, :, :, step.columns]
            rows = query[:, :, step.rows]
            merged.add(block(rows, keys, values, causal=step.causal), step.rows)
        output, lse = merged.result()
        ctx.save_for_backward(query, key, value, output, lse)
        ctx.group = group
        return output

    @staticmethod
    def backward(ctx: Any, *made: Tensor) -> tuple[Tensor | None, ...]:
        query, key, value, output, lse = ctx.saved_tensors
        of_query = torch.zeros_like(query, dtype=torch.float32)
        own = travelling = None
        for step in _round(torch.stack((key, value)), ctx.group):
            rows, columns = step.rows, step.columns
            keys, values = step.keys[:, :, :, columns]
            found = block_backward(
                *(made[0][:, :, rows], query[:, :, rows], keys, values),
                *(output[:, :, rows], lse[:, :, rows]),
                causal=step.causal,
            )
            of_query[:, :, rows] += found[0]
            of_keys = torch.zeros_like(step.keys)
            of_keys[:, :, :, columns] = torch.stack(found[1:])
            if own is None:
                own = of_keys
                continue
            if travelling is not None:
                of_keys += travelling.wait()
            travelling = start_shift(of_keys, ctx.group)
        assert own is not None
        assert travelling is not None, "a ring has two ranks or more"
        of_key, of_value = own + travelling.wait()
        return of_query.to(query.dtype), of_key, of_value, None
