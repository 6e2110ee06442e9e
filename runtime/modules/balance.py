"""The loss that keeps experts evenly busy, for each sequence by itself.

    L = α · Σ_e f_e · P_e,   f_e = E/(k·T) · tokens that chose e,   P_e = mean of p_te

(DeepSeek-V3, 2024, section 2.1.2: of a sequence, so that the layout does not matter; α
as Switch Transformers, Fedus et al., 2022, section 2.2.) f has no gradient, and P is a
sum over tokens: ranks that share a sequence need each other's counts, no more. The loss
is not reported: it is a gradient that joins the stream's on its way back.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from profiles.measure.routing import chosen_often


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
