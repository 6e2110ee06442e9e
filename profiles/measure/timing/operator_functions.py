"""The functions that are timed, written once: what trained modules call.

    choose    scores of all experts → the k best of each token, and their weights
    sorting   rows sorted by expert, and the way back
    copied    each token's row to its places; their gradients summed to the token's
    weighed   rows back at their tokens, weighted and summed
    turned    heads by their places

Each takes tensors and gives one. `torch` is loaded when a function is asked for.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, partial
from math import gcd
from typing import Any

from profiles.measure.timing.expert_products import grouped_fits
from profiles.measure.timing.tasks import Tensor
from profiles.measure.timing.windows import POOLS
from profiles.samples import ATTENTION, CONVOLUTIONS

EPSILON = 1e-5
DROPPED = 0.1
GROUPS = 32  # of a group norm, where they divide its channels
KINDS = (
    *("matmul", *ATTENTION, "layernorm", "rmsnorm", "qk-norm"),
    *("gelu", "exact-gelu", "tanh", "sigmoid", "relu", "silu"),
    *("swiglu", "geglu", "reglu", "product", "dropout", "concatenation"),
    *(*CONVOLUTIONS, *POOLS, "batchnorm", "groupnorm", "embedding-bag"),
    *("residual", "dropout-residual", "rotary", "lookup", "positions"),
    *("cross-entropy", "top-k", "dispatch", "combine", "grouped-matmul"),
)


def choose(
    scores: Tensor,
    k: int,
    groups: int = 1,
    allowed: int | None = None,
    *,
    routing: str = "softmax",
    norm: float | None = 1.0,
) -> tuple[Tensor, Tensor, Tensor]:
    """Of *scores* (…, experts): weights of the *k* best, which they are, and the
    softmax of all (Jiang et al., Mixtral of Experts, 2024, section 2.1), or the sigmoid
    of each. Weights are divided by their *norm* of that p, of 1 by their sum.

    They lie in *allowed* of the *groups* of experts (None: in any), those whose best
    ⌈k / allowed⌉ experts have the largest sum (DeepSeek-V3, 2024, section 2.1.2).
    """
    probabilities = scores.softmax(-1) if routing == "softmax" else scores.sigmoid()
    among = probabilities
    if allowed is not None and allowed < groups:
        by_group = among.unflatten(-1, (groups, -1))
        best = by_group.topk(min(-(-k // allowed), by_group.shape[-1]), dim=-1).values
        taken = best.sum(-1).topk(allowed, dim=-1).indices
        open_ = by_group.new_zeros(by_group.shape[:-1]).scatter_(-1, taken, 1.0)
        among = (by_group * open_.unsqueeze(-1)).flatten(-2)
    largest, chosen = among.topk(k, dim=-1)
    if norm == 1:
        largest = largest / largest.sum(-1, keepdim=True)
    elif norm is not None:
        largest = largest / largest.norm(norm, dim=-1, keepdim=True)
    return largest, chosen, probabilities


def chosen_often(chosen: Tensor, experts: int) -> Tensor:
    """How many tokens of each sequence chose each expert: (batch, tokens, k) → (batch,
    experts) in fp32."""
    import torch

    flat = chosen.flatten(1)
    counts = torch.zeros(len(flat), experts, device=flat.device)
    return counts.scatter_add_(1, flat, torch.ones_like(flat, dtype=torch.float32))


def sorting(groups: Tensor) -> tuple[Tensor, Tensor]:
    """The order that sorts rows by their *groups*, those of one as they came; and for
    each row the place that it comes to."""
    import torch

    order = groups.argsort(stable=True)
    places = torch.arange(len(order), device=order.device)
    return order, torch.empty_like(order).scatter_(0, order, places)


def copied(
    rows: Tensor,
    source: Tensor,
    places: Tensor,
    copies: int = 1,
    kept: Tensor | None = None,
) -> Tensor:
    """Row `source[i]` in place i; row r is in places `places[copies·r:copies·(r + 1)]`,
    those that are *kept*.

    Its gradient is theirs, summed in that order; places that are not named have none.
    """
    made: Tensor = _copied().apply(rows, source, places, copies, kept)
    return made


def weighed(rows: Tensor, weights: Tensor) -> Tensor:
    """Σ_j weights[t, j] · rows[k·t + j] for each token t, of *weights* (tokens, k)."""
    of_token = rows.unflatten(0, weights.shape)
    mixed: Tensor = (of_token * weights.unsqueeze(-1).to(rows.dtype)).sum(1)
    return mixed


@lru_cache(maxsize=1)
def _copied() -> Any:
    import torch

    class Copied(torch.autograd.Function):
        @staticmethod
        def forward(
            ctx: Any,
            rows: Tensor,
            source: Tensor,
            places: Tensor,
            copies: int,
            kept: Tensor | None,
        ) -> Tensor:
            ctx.save_for_backward(places, kept)
            ctx.copies = copies
            return rows.index_select(0, source)

        @staticmethod
        def backward(ctx: Any, *made: Tensor) -> tuple[Tensor | None, ...]:
            places, kept = ctx.saved_tensors
            gradient = made[0].index_select(0, places)
            if kept is not None:
                gradient = gradient.masked_fill_(~kept.unsqueeze(-1), 0.0)
            if ctx.copies > 1:
                gradient = gradient.unflatten(0, (-1, ctx.copies)).sum(1)
            return gradient, None, None, None, None

    return Copied


def _of_experts() -> dict[str, Any]:
    """What is timed, by kind: `dispatch` and `combine` between tokens and sorted rows,
    `permute` and `unpermute` of rows that came from other ranks."""
    import torch
    import torch.nn.functional as F

    def top_k(scores: Tensor, k: int) -> tuple[Tensor, Tensor]:
        """Also what balances the experts, of one sequence."""
        weights, chosen, probabilities = choose(scores, k)
        often = chosen_often(chosen.unsqueeze(0), scores.shape[-1])
        return weights, (often * probabilities.sum(0)).sum()

    def dispatch(tokens: Tensor, chosen: Tensor, experts: int) -> Tensor:
        copies = len(chosen) // len(tokens)
        order, places = sorting(chosen)
        counts = chosen.new_zeros(experts)
        counts.scatter_add_(0, chosen, torch.ones_like(chosen)).cumsum(0)
        return copied(tokens, order // copies, places, copies)

    def combine(rows: Tensor, places: Tensor, order: Tensor, weights: Tensor) -> Tensor:
        return weighed(copied(rows, places, order), weights)

    def permute(rows: Tensor, groups: Tensor) -> Tensor:
        return copied(rows, *sorting(groups))

    def unpermute(rows: Tensor, places: Tensor) -> Tensor:
        return rows.index_select(0, places)

    def grouped(rows: Tensor, weights: Tensor, *biases: Tensor) -> Tensor:
        """Each expert with as many rows, the first with one more where they are odd."""
        parts = rows.tensor_split(len(weights))
        if not biases and grouped_fits(rows, weights):
            counts = [len(one) for one in parts]
            ends = torch.tensor(counts, device=rows.device).cumsum(0)
            of_all = weights.transpose(1, 2)
            made: Tensor = F.grouped_mm(rows, of_all, offs=ends.int())
            return made
        each = zip(
            parts, weights.unbind(0), *(b.unbind(0) for b in biases), strict=True
        )
        return torch.cat([F.linear(*given) for given in each])

    return {
        "top-k": top_k,
        "dispatch": dispatch,
        "combine": combine,
        "permute": permute,
        "unpermute": unpermute,
        "grouped-matmul": grouped,
    }


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
        **_of_windows(),
        "residual": torch.add,
        "product": torch.mul,
        "concatenation": lambda one, other: torch.cat([one, other], -1),
        "dropout": lambda stream: torch.native_dropout(stream, DROPPED, True)[0],
        "dropout-residual": dropped,
        "rotary": _rotary,
        "lookup": F.embedding,
        "positions": positions,
        "cross-entropy": cross_entropy,
        **_of_experts(),
    }


def _unpacked(packed: Tensor, queries: int, head_dim: int) -> tuple[Tensor, ...]:
    """Queries, keys and values of one packed product, by key-value head."""
    groups = packed.unflatten(-1, (-1, queries + 2, head_dim))
    parts = groups.split((queries, 1, 1), dim=3)
    return tuple(one.flatten(2, 3).transpose(1, 2) for one in parts)


def _attention() -> dict[str, Callable[..., Any]]:
    """Of one packed product, and of three tensors."""
    import torch.nn.functional as F

    def mixed(query: Tensor, key: Tensor, value: Tensor, causal: bool) -> Tensor:
        grouped = query.shape[1] != key.shape[1]
        made: Tensor = F.scaled_dot_product_attention(
            query, key, value, is_causal=causal, enable_gqa=grouped
        )
        return made.transpose(1, 2).flatten(2)

    def packed_heads(
        packed: Tensor, queries: int, head_dim: int, *, causal: bool
    ) -> Tensor:
        query, key, value = _unpacked(packed, queries, head_dim)
        return mixed(query, key, value, causal)

    def separate(query: Tensor, key: Tensor, value: Tensor, *, causal: bool) -> Tensor:
        query, key, value = (one.transpose(1, 2) for one in (query, key, value))
        return mixed(query, key, value, causal)

    found: dict[str, Callable[..., Any]] = {}
    for name in ATTENTION:
        causal = name == "attention"
        found[name] = partial(packed_heads, causal=causal)
        found[f"{name}-separate"] = partial(separate, causal=causal)
    return found


def _of_windows() -> dict[str, Callable[..., Any]]:
    """Of pictures and volumes, and of bags of rows."""
    import torch.nn.functional as F

    def convolution(given: Tensor, weight: Tensor, call: Callable[..., Any]) -> Tensor:
        return call(given, weight)

    def batch_norm(rows: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
        return F.batch_norm(rows, None, None, scale, shift, training=True)

    def group_norm(rows: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
        groups = gcd(rows.shape[1], GROUPS)
        return F.group_norm(rows, groups, scale, shift, EPSILON)

    pools = (F.max_pool1d, F.max_pool2d, F.max_pool3d)
    return {
        **dict.fromkeys(CONVOLUTIONS, convolution),
        **dict(zip(POOLS, pools, strict=True)),
        "batchnorm": batch_norm,
        "groupnorm": group_norm,
        "embedding-bag": partial(F.embedding_bag, mode="sum"),
    }


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
            (made,) = gradients
            of_gate = torch.ops.aten.silu_backward(made * up, gate)
            return of_gate, F.silu(gate).mul_(made)

    return {
        "gelu": gelu,
        "exact-gelu": F.gelu,
        "tanh": torch.tanh,
        "sigmoid": torch.sigmoid,
        "relu": F.relu,
        "silu": F.silu,
        "swiglu": SwiGlu.apply,
        "geglu": geglu,
        "reglu": reglu,
    }


def turned(heads: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    """*heads* (batch, heads, seq_len, head_dim), turned by the angles of their places,
    (seq_len, head_dim) each."""
    cosine, sine = cosine.to(heads.dtype), sine.to(heads.dtype)
    made: Tensor = _turned().apply(heads, cosine, sine)
    return made


@lru_cache(maxsize=1)
def _turned() -> Any:
    import torch

    class Turned(torch.autograd.Function):
        """(a, b) → (a cos − b sin, b cos + a sin); back by the same angle."""

        @staticmethod
        def forward(ctx: Any, heads: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
            ctx.save_for_backward(cosine, sine)
            return _turn(heads, cosine, sine, 1)

        @staticmethod
        def backward(ctx: Any, *made: Tensor) -> tuple[Tensor | None, ...]:
            cosine, sine = ctx.saved_tensors
            return _turn(made[0], cosine, sine, -1), None, None

    return Turned


def _turn(heads: Tensor, cosine: Tensor, sine: Tensor, sign: int) -> Tensor:
    """In three passes, of which two are over a half; *sign* of the angle."""
    made = heads * cosine
    half = heads.shape[-1] // 2
    (first, second), sine = heads.split(half, dim=-1), sine[..., :half]
    made[..., :half].addcmul_(second, sine, value=-sign)
    made[..., half:].addcmul_(first, sine, value=sign)
    return made


def _rotary(
    packed: Tensor, queries: int, head_dim: int, cosine: Tensor, sine: Tensor
) -> tuple[Tensor, ...]:
    """Queries and keys turned, values copied out of the packed product."""
    query, key, value = _unpacked(packed, queries, head_dim)
    return turned(query, cosine, sine), turned(key, cosine, sine), value.clone()
