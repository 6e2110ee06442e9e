"""A mixture of experts in place of a layer's MLP: router, experts, shared experts.

    p_t = softmax(W x_t) in 32 bits; the k largest are chosen, and divided by their sum
    y_t = Σ_chosen w_te · expert_e(x_t) + shared(x_t)

(Jiang et al., Mixtral of Experts, 2024, section 2.1; shared experts: DeepSeekMoE, Dai
et al., 2024.) Rows go to the experts sorted by expert, each token as often as it has
experts (`every_row`), or as many for each expert and sequence whatever the router says
(`within_capacity`). Who carries them is `exchange`: nobody, as long as all experts are
here.

An expert of fixed capacity takes, of each sequence, the tokens that weigh it highest;
the others go on without it, their other weights as they were (GShard, Lepikhin et al.,
2020, section 2.2; by weight as in Megatron-Core, whose groups are all tokens of a
rank). What is too few is filled up with tokens of weight zero, so that all messages and
products have one size. Of a sequence that several ranks share each takes its own part
for one.

The loss that keeps experts evenly busy (`Balance`), for each sequence by itself:

    L = α · Σ_e f_e · P_e,   f_e = E/(k·T) · tokens that chose e,   P_e = mean of p_te

(DeepSeek-V3, 2024, section 2.1.2: of a sequence, so that the layout does not matter; α
as Switch Transformers, Fedus et al., 2022, section 2.2.) f has no gradient, and P is a
sum over tokens: ranks that share a sequence need each other's counts, no more. The loss
is not reported: it is a gradient that joins the stream's on its way back.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from profiles.measure.timing import choose, chosen_often, copied, sorting, weighed
from profiles.models import DecoderSpec, MoeSpec
from runtime.models.mlp import Mlp, activation_of
from runtime.models.products import AS_GIVEN, Counts, Product
from runtime.models.split_backward import Deferred, linear, stacked


@dataclass(frozen=True, slots=True)
class Routed:
    """The router's answer: (batch, tokens, k) twice, and (batch, tokens, experts)."""

    weights: Tensor
    chosen: Tensor
    probabilities: Tensor


@dataclass(frozen=True, slots=True)
class Sent:
    """*rows* sorted by expert, `counts[e]` for expert e (None: as many for each); the
    j-th expert of token t makes row `places[k·t + j]`, which has `weights[t, j]`. Where
    every row has one place, row i is in place `order[i]` of those."""

    rows: Tensor
    counts: Tensor | None
    places: Tensor
    weights: Tensor
    order: Tensor | None = None

    def by_token(self, made: Tensor) -> Tensor:
        """Of what experts *made* of the rows, each token's, one after another."""
        if self.order is None:
            return made.index_select(0, self.places)
        rows: Tensor = copied(made, self.places, self.order)  # whose gradient is theirs
        return rows


def every_row(stream: Tensor, routed: Routed, *, weighted: bool = False) -> Sent:
    """Of *stream* (batch, tokens, hidden), nothing dropped; rows that are *weighted*
    have their weight before the experts, and none after."""
    chosen, copies = routed.chosen.flatten(), routed.chosen.shape[-1]
    order, places = sorting(chosen)
    rows = copied(stream.flatten(0, 1), order // copies, places, copies)
    weights = routed.weights.flatten(0, 1)
    if weighted:
        rows = rows * weights.flatten()[order].unsqueeze(-1).to(rows.dtype)
        weights = torch.ones_like(weights)
    # `bincount` would wait for the device.
    counts = chosen.new_zeros(routed.probabilities.shape[-1])
    return Sent(
        rows=rows,
        counts=counts.scatter_add_(0, chosen, torch.ones_like(chosen)),
        places=places,
        weights=weights,
        order=order,
    )


def within_capacity(stream: Tensor, routed: Routed, capacity: int) -> Sent:
    """*capacity* rows of each sequence for each expert."""
    (batch, tokens, copies), where = routed.chosen.shape, stream.device
    experts = routed.probabilities.shape[-1]
    gates = torch.zeros_like(routed.probabilities.detach())
    gates.scatter_(-1, routed.chosen, routed.weights.detach())
    taken = gates.transpose(1, 2).topk(capacity, dim=-1).indices
    first = tokens * torch.arange(batch, device=where).view(-1, 1, 1)
    rows = torch.arange(experts * batch * capacity, device=where)
    of_expert = rows.view(experts, batch, capacity).transpose(0, 1)
    at = torch.full((batch, experts, tokens), -1, device=where)
    at.scatter_(-1, taken, of_expert)
    places = at.transpose(1, 2).gather(-1, routed.chosen).flatten()
    kept = places >= 0
    places = places.clamp(min=0)
    source = (taken + first).transpose(0, 1).flatten()
    return Sent(
        rows=copied(stream.flatten(0, 1), source, places, copies, kept),
        counts=None,
        places=places,
        weights=routed.weights.flatten(0, 1) * kept.view(-1, copies),
    )


class Balance(nn.Module):
    """Adds the loss's gradient, times `scale`, to that of the stream.

    `sharing` sums counts over the ranks that share a sequence, of whom there are
    `parts`; `mean_over` of them average their gradients, the others add them up.
    """

    def __init__(self, experts: int, alpha: float) -> None:
        super().__init__()
        self.alpha = alpha
        self.experts = experts
        self.scale = 1.0
        self.parts = self.mean_over = 1
        self.sharing: Callable[[Tensor], Tensor] | None = None

    def forward(self, stream: Tensor, chosen: Tensor, probabilities: Tensor) -> Tensor:
        """*stream* as it is; *chosen* (batch, tokens, k), *probabilities* (batch,
        tokens, experts) in fp32."""
        if not self.alpha or not torch.is_grad_enabled():
            return stream
        loss = self.loss(chosen, probabilities)
        attached: Tensor = _Attached.apply(stream, loss, self.scale)  # type: ignore[no-untyped-call]
        return attached

    def loss(self, chosen: Tensor, probabilities: Tensor) -> Tensor:
        """This rank's summand, the mean over its sequences."""
        _, tokens, copies = chosen.shape
        counts: Tensor = chosen_often(chosen, self.experts)
        if self.sharing is not None:
            counts = self.sharing(counts)
        often = counts * (self.experts / (copies * tokens * self.parts))
        whole = tokens * self.parts / self.mean_over
        likely = probabilities.sum(1) / whole
        return self.alpha * (often * likely).sum(1).mean()


class _Attached(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, stream: Tensor, loss: Tensor, scale: float) -> Tensor:
        ctx.scale, ctx.dtype = scale, loss.dtype
        return stream.view_as(stream)

    @staticmethod
    def backward(ctx: Any, *made: Tensor) -> tuple[Tensor | None, ...]:
        (gradient,) = made
        of_loss = gradient.new_full((), ctx.scale, dtype=ctx.dtype)
        return gradient, of_loss, None


class Router(nn.Module):
    """Scores of all experts for each token, in fp32 whatever the precision is."""

    def __init__(self, spec: DecoderSpec, moe: MoeSpec) -> None:
        super().__init__()
        self.linear = nn.Linear(spec.hidden, moe.experts, bias=moe.router_bias)
        self.chosen = moe.experts_per_token
        self.groups, self.allowed = moe.router_groups, moe.groups_per_token
        self.routing, self.norm = spec.numerics.routing, spec.numerics.routing_norm
        self.later: Deferred | None = None

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
        self.later: Deferred | None = None
        self.product: Product = AS_GIVEN

    def forward(self, rows: Tensor, counts: Counts) -> Tensor:
        """Each expert's product with its rows; those without have gradients too."""
        bias = None if self.bias is None else here(self.bias)
        return stacked(rows, counts, here(self.weight), bias, self.later, self.product)


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
        counts: Counts,
        by: Callable[..., Tensor] | None = None,
    ) -> Tensor:
        """Rows sorted by expert, so many for each → what they make of them; *by*
        carries the products out, of rows and counts, where they are named."""
        if by is not None:
            return by(rows, counts)
        active = self.activation(*self.inner(rows, counts))
        made: Tensor = self.down(active, counts)
        return made

    def inner(self, rows: Tensor, counts: Counts) -> tuple[Tensor, ...]:
        """What the function between the products takes: gate, if it has one, and up."""
        if self.gate is None:
            return (self.up(rows, counts),)
        return self.gate(rows, counts), self.up(rows, counts)


class Held(Protocol):
    """Experts as `Experts` are, or what calls them."""

    held: int

    def __call__(self, rows: Tensor, counts: Counts) -> Tensor: ...


# Carries sorted rows to the experts and back: `counts[e]` of them are for expert e, as
# many for each without counts; gives what the experts make of them.
Exchange = Callable[[Tensor, Tensor | None, Held], Tensor]


def all_here(rows: Tensor, counts: Tensor | None, experts: Held) -> Tensor:
    """The exchange where this rank holds all experts."""
    if counts is None:
        each = len(rows) // experts.held
        return experts(rows, Counts.evenly(each, experts.held, rows.device))
    return experts(rows, Counts(counts))


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
        mixed: Tensor = weighed(sent.by_token(made), sent.weights).view(stream.shape)
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
