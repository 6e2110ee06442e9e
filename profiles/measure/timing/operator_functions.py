"""The functions that are timed, written as the trained modules call them.

The MLP of `runtime.models` takes its activation from here.

Each takes tensors and gives one. `torch` is loaded when the module is asked for them.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

from profiles.measure.timing import moe_routing as routing
from profiles.measure.timing.tasks import Tensor

EPSILON = 1e-5
DROPPED = 0.1
KINDS = (
    "matmul",
    "attention",
    "layernorm",
    "rmsnorm",
    "qk-norm",
    "gelu",
    "relu",
    "silu",
    "swiglu",
    "geglu",
    "reglu",
    "residual",
    "dropout-residual",
    "rotary",
    "lookup",
    "positions",
    "cross-entropy",
    "top-k",
    "dispatch",
    "combine",
    "grouped-matmul",
)


@lru_cache(maxsize=1)
def functions() -> dict[str, Callable[..., Any]]:
    """By kind; of some kinds there are two, named after the variant."""
    import torch
    import torch.nn.functional as F

    def dropped(branch: Tensor, skip: Tensor) -> Tensor:
        return skip + torch.native_dropout(branch, DROPPED, True)[0]

    def positions(stream: Tensor, table: Tensor) -> Tensor:
        return stream + table[: stream.shape[1]]

    def cross_entropy(logits: Tensor, targets: Tensor) -> Tensor:
        return F.cross_entropy(logits.float(), targets)

    return {
        "matmul": F.linear,
        **_attention(),
        **_norms(),
        **_activations(),
        "residual": torch.add,
        "dropout-residual": dropped,
        "rotary": _rotary(),
        "lookup": F.embedding,
        "positions": positions,
        "cross-entropy": cross_entropy,
        **routing.timed(),
    }


def _unpacked(packed: Tensor, queries: int, head_dim: int) -> tuple[Tensor, ...]:
    """Queries, keys and values of one packed product, by key-value head."""
    groups = packed.unflatten(-1, (-1, queries + 2, head_dim))
    parts = groups.split((queries, 1, 1), dim=3)
    return tuple(one.flatten(2, 3).transpose(1, 2) for one in parts)


def _attention() -> dict[str, Callable[..., Any]]:
    """Of one packed product, and of three tensors."""
    import torch.nn.functional as F

    def mixed(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        grouped = query.shape[1] != key.shape[1]
        made: Tensor = F.scaled_dot_product_attention(
            query, key, value, is_causal=True, enable_gqa=grouped
        )
        return made.transpose(1, 2).flatten(2)

    def attention(packed: Tensor, queries: int, head_dim: int) -> Tensor:
        query, key, value = _unpacked(packed, queries, head_dim)
        return mixed(query, key, value)

    def separate(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return mixed(*(one.transpose(1, 2) for one in (query, key, value)))

    return {"attention": attention, "attention-separate": separate}


def _norms() -> dict[str, Callable[..., Any]]:
    import torch.nn.functional as F

    def layernorm(stream: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
        return F.layer_norm(stream, scale.shape, scale, shift, EPSILON)

    def rmsnorm(stream: Tensor, scale: Tensor) -> Tensor:
        return F.rms_norm(stream, list(scale.shape), scale, EPSILON)

    return {"layernorm": layernorm, "rmsnorm": rmsnorm}


def _activations() -> dict[str, Callable[..., Any]]:
    """Functions between the products of an MLP; gated ones take gate and value."""
    import torch
    import torch.nn.functional as F

    def gelu(stream: Tensor) -> Tensor:
        return F.gelu(stream, approximate="tanh")

    def geglu(gate: Tensor, up: Tensor) -> Tensor:
        return gelu(gate) * up

    def reglu(gate: Tensor, up: Tensor) -> Tensor:
        return F.relu(gate) * up

    class SwiGlu(torch.autograd.Function):
        """silu(gate) · up, which keeps its two inputs and nothing else."""

        @staticmethod
        def forward(ctx: Any, gate: Tensor, up: Tensor) -> Tensor:
            ctx.save_for_backward(gate, up)
            return F.silu(gate).mul_(up)

        @staticmethod
        def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor]:
            gate, up = ctx.saved_tensors
            share = gate.sigmoid()
            swish = gate * share
            slope = share + swish * (1 - share)
            return slope.mul_(gradients[0]).mul_(up), swish.mul_(gradients[0])

    return {
        "gelu": gelu,
        "relu": F.relu,
        "silu": F.silu,
        "swiglu": SwiGlu.apply,
        "geglu": geglu,
        "reglu": reglu,
    }


def _rotary() -> Callable[..., Any]:
    import torch

    def turned(heads: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
        first, second = heads.chunk(2, dim=-1)
        quarter = torch.cat((-second, first), dim=-1)
        return heads * cosine.to(heads.dtype) + quarter * sine.to(heads.dtype)

    def rotary(
        packed: Tensor, queries: int, head_dim: int, cosine: Tensor, sine: Tensor
    ) -> tuple[Tensor, ...]:
        """Queries and keys turned, values copied out of the packed product."""
        query, key, value = _unpacked(packed, queries, head_dim)
        return turned(query, cosine, sine), turned(key, cosine, sine), value.clone()

    return rotary
