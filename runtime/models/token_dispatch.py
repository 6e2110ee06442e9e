"""The rows that go to experts, sorted by expert, and where each came from.

    every_row         each token as often as it has experts
    within_capacity   as many for each expert and sequence, whatever the router says

An expert of fixed capacity takes, of each sequence, the tokens that weigh it highest;
the others are dropped: they go on without it, their other weights as they were (GShard,
Lepikhin et al., 2020, section 2.2; by weight as in Megatron-Core, whose groups are all
tokens of a rank). What is too few is filled up with tokens of weight zero, so that all
messages and products have one size. Of a sequence that several ranks share each takes
its own part for one.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from profiles.measure.timing import copied, sorting


@dataclass(frozen=True, slots=True)
class Routed:
    """The router's answer: (batch, tokens, k) twice, and (batch, tokens, experts)."""

    weights: Tensor
    chosen: Tensor
    probabilities: Tensor


@dataclass(frozen=True, slots=True)
class Sent:
    """*rows* sorted by expert, `counts[e]` for expert e (None: as many for each); the
    j-th expert of token t makes row `places[k·t + j]`, which has `weights[t, j]`."""

    rows: Tensor
    counts: Tensor | None
    places: Tensor
    weights: Tensor


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
    return Sent(
        rows=rows,
        counts=chosen.bincount(minlength=routed.probabilities.shape[-1]),
        places=places,
        weights=weights,
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
