"""1-bit Adam: Adam whose ranks, after a warm-up, exchange momenta instead of gradients.

    warm-up     gradients are averaged; m, v and the step are Adam's
    afterwards  m ← β₁ m + (1 − β₁) g of each rank's own gradient, then the ranks' mean
                in a sign each; v stays, and so does its correction

(Tang et al., ICML 2021, algorithm 1; weight decay as in AdamW.) Ranks begin alike and
take the same mean, so that weights stay alike.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

Mean = Callable[[Tensor], Tensor]  # over the ranks, of a flat tensor


class OneBitAdam(torch.optim.Optimizer):
    """*mean* is taken of all momenta together; *decoupled*: AdamW's weight decay."""

    def __init__(
        self,
        groups: Iterable[dict[str, Any]],
        *,
        warm_up: int,
        mean: Mean,
        decoupled: bool = True,
    ) -> None:
        super().__init__(groups, {})
        self._warm_up, self._mean, self._decoupled = warm_up, mean, decoupled

    @property
    def exchanges(self) -> bool:
        """Whether the next step takes each rank's own gradients."""
        steps = [float(one["step"]) for one in self.state.values() if "step" in one]
        return max(steps, default=0.0) >= self._warm_up

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        exchanges = self.exchanges
        members = [
            (one, group)
            for group in self.param_groups
            for one in group["params"]
            if one.grad is not None
        ]
        for one, group in members:
            self._take(one, group, exchanges)
        if exchanges and members:
            momenta = [self.state[one]["exp_avg"] for one, _ in members]
            flat = self._mean(torch.cat([one.flatten() for one in momenta]))
            sizes = [one.numel() for one in momenta]
            for one, part in zip(momenta, flat.split(sizes), strict=True):
                one.copy_(part.view_as(one))
        for one, group in members:
            self._update(one, group)

    def _take(self, one: Tensor, group: dict[str, Any], exchanges: bool) -> None:
        state, made = self.state[one], one.grad
        assert made is not None, "those without a gradient are passed over"
        if not state:
            state["step"] = torch.zeros(())
            state["exp_avg"] = torch.zeros_like(one)
            state["exp_avg_sq"] = torch.zeros_like(one)
        if not self._decoupled:
            made = made.add(one, alpha=group["weight_decay"])
        state["step"] += 1
        first, second = group["betas"]
        state["exp_avg"].lerp_(made, 1 - first)
        if not exchanges:
            state["exp_avg_sq"].mul_(second).addcmul_(made, made, value=1 - second)

    def _update(self, one: Tensor, group: dict[str, Any]) -> None:
        state, (first, second) = self.state[one], group["betas"]
        count = float(state["step"])
        if self._decoupled:
            one.mul_(1 - group["lr"] * group["weight_decay"])
        seen = 1 - second ** min(count, self._warm_up)  # v's steps
        size = (state["exp_avg_sq"] / seen).sqrt_().add_(group["eps"])
        one.addcdiv_(state["exp_avg"], size, value=-group["lr"] / (1 - first**count))
