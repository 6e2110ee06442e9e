"""A mixture of experts in place of a layer's MLP: router, experts, shared experts.

    p_t = softmax(W x_t) in 32 bits; the k largest are chosen, and divided by their sum
    y_t = Σ_chosen w_te · expert_e(x_t) + shared(x_t)

(Jiang et al., Mixtral of Experts, 2024, section 2.1; shared experts: DeepSeekMoE, Dai
et al., 2024.) Rows go to the experts sorted by expert (`sent_rows`), each token as
often as it has experts. Who carries them is `exchange`: nobody, as long as all experts
are here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from profiles.measure.routing import choose, combined
from profiles.models.spec import DecoderSpec, MoeSpec
from runtime.modules.balance import Balance
from runtime.modules.mlp import Mlp, activation_of
from runtime.modules.sent_rows import Routed, Sent, every_row, within_capacity
from runtime.product import AS_GIVEN, Product
from runtime.split_backward import Later, linear, stacked


class Router(nn.Module):
    """Scores of all experts for each token, in fp32 whatever the precision is."""

    def __init__(self, spec: DecoderSpec, moe: MoeSpec) -> None:
        super().__init__()
        self.linear = nn.Linear(spec.hidden, moe.experts, bias=moe.router_bias)
        self.chosen = moe.experts_per_token
        self.groups, self.allowed = moe.router_groups, moe.groups_per_token
        self.routing, self.norm = spec.numerics.routing, spec.numerics.routing_norm
        self.later: Later | None = None

    def forward(self, stream: Tensor) -> Routed:
        return self.choose(self.scores(stream))

    def scores(self, stream: Tensor) -> Tensor:
        """Of all experts for each token."""
        bias: Tensor | None = self.linear.bias
        bias = None if bias is None else bias.float()
        with torch.autocast(stream.device.type, enabled=False):
            weight = self.linear.weight.float()
            return linear(stream.float(), weight, bias, self.later)

    def choose(self, scores: Tensor) -> Routed:
        """The experts of each token."""
        made = choose(
            scores,
            self.chosen,
            self.groups,
            self.allowed,
            routing=self.routing,
            norm=self.norm,
        )
        return Routed(*made)


class Stack(nn.Module):
    """One linear layer for each expert: weight (experts, out, in)."""

    def __init__(self, experts: int, inward: int, outward: int, *, bias: bool) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(experts, outward, inward))
        self.bias = nn.Parameter(torch.empty(experts, outward)) if bias else None
        self.later: Later | None = None
        self.product: Product = AS_GIVEN

    def forward(self, rows: Sequence[Tensor]) -> list[Tensor]:
        """Expert i's product with `rows[i]`; those without rows have gradients too."""
        bias = None if self.bias is None else here(self.bias)
        return stacked(rows, here(self.weight), bias, self.later, self.product)


class Experts(nn.Module):
    """The experts that a rank holds, each an MLP of the model's kind.

    *held* says how many; their weights do not where other ranks keep shards of them.
    Ranks that share experts have a part of the width of each.
    """

    def __init__(self, spec: DecoderSpec, moe: MoeSpec) -> None:
        super().__init__()
        count, width = moe.experts, moe.expert_ffn_hidden
        self.held = count
        self.activation = activation_of(spec)
        self.gate = (
            Stack(count, spec.hidden, width, bias=spec.mlp_bias)
            if spec.gated_mlp
            else None
        )
        self.up = Stack(count, spec.hidden, width, bias=spec.mlp_bias)
        self.down = Stack(count, width, spec.hidden, bias=spec.mlp_bias)

    def forward(
        self,
        rows: Tensor,
        counts: Sequence[int],
        by: Callable[..., Tensor] | None = None,
    ) -> Tensor:
        """Rows sorted by expert, `counts[i]` for the i-th → what they make of them;
        *by* carries the products out, of rows and counts, where they are named."""
        if by is not None:
            return by(rows, counts)
        return self.outer(*self.between(*self.inner(rows, counts)))

    def inner(self, rows: Tensor, counts: Sequence[int]) -> tuple[Tensor, ...]:
        """The first products: of each expert, and before them those of the gate."""
        parts = rows.split(list(counts))
        gate = [] if self.gate is None else self.gate(parts)
        return *gate, *self.up(parts)

    def between(self, *inner: Tensor) -> tuple[Tensor, ...]:
        """What the function between the products makes of each expert's."""
        if self.gate is None:
            return tuple(self.activation(one) for one in inner)
        gate, up = inner[: self.held], inner[self.held :]
        pairs = zip(gate, up, strict=True)
        return tuple(self.activation(*pair) for pair in pairs)

    def outer(self, *active: Tensor) -> Tensor:
        """The last products, rows sorted by expert."""
        return torch.cat(self.down(active))


class Held(Protocol):
    """Experts as `Experts` are, or what calls them."""

    held: int

    def __call__(self, rows: Tensor, counts: Sequence[int]) -> Tensor: ...


class Exchange(Protocol):
    """Carries sorted rows to the experts and back."""

    def __call__(self, rows: Tensor, counts: Tensor | None, experts: Held) -> Tensor:
        """`counts[e]` of *rows* are for expert e, as many for each without counts; what
        the experts make of them."""


def all_here(rows: Tensor, counts: Tensor | None, experts: Held) -> Tensor:
    """The exchange where this rank holds all experts."""
    each = len(rows) // experts.held
    made: Tensor = experts(
        rows, [each] * experts.held if counts is None else counts.tolist()
    )
    return made


class ExpertMlp(nn.Module):
    """(batch, tokens, hidden) → the same, each token by its k experts."""

    def __init__(self, spec: DecoderSpec, moe: MoeSpec) -> None:
        super().__init__()
        self.router = Router(spec, moe)
        self.experts = Experts(spec, moe)
        width = moe.shared_experts * moe.shared_ffn_hidden
        self.shared: nn.Module | None = Mlp(spec, width) if width else None
        self.shared_gate = (
            nn.Linear(spec.hidden, 1, bias=False) if width and moe.shared_gate else None
        )
        self.balance = Balance(moe.experts, spec.numerics.balance)
        self.weighted_input = spec.numerics.weighted_input
        self.exchange: Exchange = all_here
        self.capacity_of = moe.capacity_of

    def forward(self, stream: Tensor) -> Tensor:
        routed = self.router(stream)
        stream = self.balance(stream, routed.chosen, routed.probabilities)
        beside = None
        if self.shared is not None:
            beside = self.gated(self.shared(stream), stream)
        sent = self.sent(stream, routed)
        made = self.exchange(sent.rows, sent.counts, self.experts)
        mixed: Tensor = combined(made, sent.places, sent.weights).view(stream.shape)
        return mixed if beside is None else mixed + beside

    def gated(self, made: Tensor, stream: Tensor) -> Tensor:
        """What the shared experts *made* of *stream*, times their gate if they have
        one."""
        if self.shared_gate is None:
            return made
        share: Tensor = self.shared_gate(stream).sigmoid()
        return made * share

    def sent(self, stream: Tensor, routed: Routed) -> Sent:
        """The rows that go to experts."""
        capacity = self.capacity_of(stream.shape[1])
        if capacity is None:
            return every_row(stream, routed, weighted=self.weighted_input)
        return within_capacity(stream, routed, capacity)


def here(parameter: Tensor) -> Tensor:
    """This rank's part of *parameter*."""
    return parameter.to_local() if isinstance(parameter, DTensor) else parameter
