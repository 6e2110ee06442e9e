"""Attention of some queries to some keys, as a summand of attention to all of them.

A block's output o_b comes with the logarithm of its softmax's denominator, l_b. Blocks
over disjoint keys add up (Milakov and Gimelshein, 2018; Dao et al., 2022, section 3.1):

    l = log Σ_b exp l_b,    o = Σ_b exp(l_b − l) · o_b

and with o and l of the whole, each block's gradient is a backward of its own. The
kernels are those of `scaled_dot_product_attention`, called by their own names since it
does not hand on l. Queries are (batch, heads, queries, head_dim), keys and values
(batch, kv_heads, keys, head_dim), l is (batch, heads, queries) in fp32.
"""

from __future__ import annotations

import torch
from torch import Tensor

_aten = torch.ops.aten
_HALF = (torch.float16, torch.bfloat16)
# The memory-efficient kernel of CUDA pads the queries of l to whole tiles.
_TILE = 32


def block(
    query: Tensor, key: Tensor, value: Tensor, *, causal: bool
) -> tuple[Tensor, Tensor]:
    """Output and l of a block; *causal* where queries and keys are the same tokens."""
    if query.device.type == "cpu":
        made = _aten._scaled_dot_product_flash_attention_for_cpu(
            query, key, value, 0.0, causal
        )
        return made[0], made[1]
    key, value = (_for_each_query(one, query) for one in (key, value))
    if query.dtype in _HALF:
        made = _aten._scaled_dot_product_flash_attention(
            query, key, value, 0.0, causal, False
        )
        return made[0], made[1]
    made = _aten._scaled_dot_product_efficient_attention(
        query, key, value, None, True, 0.0, causal
    )
    return made[0], made[1][:, :, : query.shape[2]]


def block_backward(
    gradient: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    output: Tensor,
    lse: Tensor,
    *,
    causal: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of a block's query, key and value; *output* and *lse* of the whole."""
    if query.device.type == "cpu":
        made = _aten._scaled_dot_product_flash_attention_for_cpu_backward(
            gradient, query, key, value, output, lse, 0.0, causal
        )
        return made[0], made[1], made[2]
    keys, values = (_for_each_query(one, query) for one in (key, value))
    call = _flash_backward if query.dtype in _HALF else _efficient_backward
    of_query, *others = call(gradient, query, keys, values, output, lse, causal)
    of_key, of_value = (_of_each_key(one, key) for one in others)
    return of_query, of_key, of_value


class Merged:
    """Blocks of *like*'s queries merged as they come, in fp32."""

    def __init__(self, like: Tensor) -> None:
        self._dtype = like.dtype
        self._output = torch.zeros_like(
            like, dtype=torch.float32, memory_format=torch.contiguous_format
        )
        self._lse = like.new_full(like.shape[:-1], -torch.inf, dtype=torch.float32)

    def add(self, made: tuple[Tensor, Tensor], rows: slice) -> None:
        """Merge a block of the queries *rows*."""
        output, lse = made[0].float(), made[1]
        known = self._lse[:, :, rows]
        both = torch.logaddexp(known, lse)
        share, more = (known - both).exp(), (lse - both).exp()
        self._output[:, :, rows] = self._output[:, :, rows] * share.unsqueeze(
            -1
        ) + output * more.unsqueeze(-1)
        self._lse[:, :, rows] = both

    def result(self) -> tuple[Tensor, Tensor]:
        """Output, in the queries' precision, and l of the whole."""
        return self._output.to(self._dtype), self._lse


def _flash_backward(
    gradient: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    output: Tensor,
    lse: Tensor,
    causal: bool,
) -> tuple[Tensor, ...]:
    unused = torch.empty(0, dtype=torch.int64, device=query.device)
    found: tuple[Tensor, ...] = _aten._scaled_dot_product_flash_attention_backward(
        gradient,
        *(query, key, value, output, lse.contiguous()),
        *(None, None, query.shape[2], key.shape[2], 0.0, causal),
        *(unused, unused),
    )
    return found


def _efficient_backward(
    gradient: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    output: Tensor,
    lse: Tensor,
    causal: bool,
) -> tuple[Tensor, ...]:
    unused = torch.empty((), dtype=torch.int64, device=query.device)
    short = -lse.shape[-1] % _TILE
    padded = torch.nn.functional.pad(lse, (0, short), value=torch.inf)
    found: tuple[Tensor, ...] = _aten._scaled_dot_product_efficient_attention_backward(
        gradient,
        *(query, key, value, None, output, padded, unused, unused, 0.0),
        *([True, True, True, False], causal),
    )
    return found[:3]


def _for_each_query(shared: Tensor, query: Tensor) -> Tensor:
    """Key or value heads repeated for the query heads that share them."""
    return shared.repeat_interleave(query.shape[1] // shared.shape[1], dim=1)


def _of_each_key(gradient: Tensor, shared: Tensor) -> Tensor:
    """The transpose of `_for_each_query`."""
    summed: Tensor = gradient.unflatten(1, (shared.shape[1], -1)).sum(2)
    return summed
