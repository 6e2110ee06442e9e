"""An optimizer's step taken back, from the gradients that made it.

A rank that lost its peers in the middle of an update has parameters of two steps; what
it updated is inverted, so that all are of one (Swift: Zhong et al., PPoPP 2023, section
3.2). With g the gradient and primes after the step:

    SGD      x = (x' + η·u') / (1 − ηλ) where λ decays, u = (u' − g) / μ
    AdamW    x = (x' + η·m̂' / (√v̂' + ε)) / (1 − ηλ)
             m = (m' − (1 − β₁)·g) / β₁,  v = (v' − (1 − β₂)·g²) / β₂

Adam adds λ·x to g instead. Exact up to rounding, of which double precision leaves that
of the state itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from profiles.errors import Unsupported

State = dict[str, Any]


@torch.no_grad()
def undo(
    torchs: torch.optim.Optimizer, gradients: Mapping[nn.Parameter, Tensor]
) -> None:
    """Take back *torchs*' last step of the parameters that have one of *gradients*, as
    it was given them.

    Raises Unsupported for an optimizer that forgets what is needed.
    """
    require_undoable(torchs)
    adam = isinstance(torchs, torch.optim.Adam)  # which AdamW is one of
    for group in torchs.param_groups:
        for parameter in group["params"]:
            if parameter in gradients:
                state = torchs.state[parameter]
                inverse = _adam if adam else _sgd
                inverse(group, parameter, gradients[parameter], state)


def require_undoable(torchs: torch.optim.Optimizer) -> None:
    """Raise Unsupported for an optimizer whose step cannot be taken back."""
    known = (torch.optim.AdamW, torch.optim.Adam, torch.optim.SGD)
    flags = ("amsgrad", "maximize", "nesterov", "dampening")
    set_ = [flag for group in torchs.param_groups for flag in flags if group.get(flag)]
    if type(torchs) not in known or set_:
        with_ = f" with {set_[0]}" if set_ else ""
        raise Unsupported(
            f"a step of {type(torchs).__name__}{with_} cannot be taken back; one of "
            "AdamW, Adam or SGD can, without amsgrad, maximize, nesterov and dampening"
        )


def _adam(group: State, parameter: Tensor, gradient: Tensor, state: State) -> None:
    rate, decay, epsilon = group["lr"], group["weight_decay"], group["eps"]
    beta1, beta2 = group["betas"]
    decoupled = group.get("decoupled_weight_decay", False)
    steps = float(state["step"])
    first, second = state["exp_avg"].double(), state["exp_avg_sq"].double()
    root = (second / (1 - beta2**steps)).sqrt_().add_(epsilon)
    before = parameter.double() + rate / (1 - beta1**steps) * first / root
    made = gradient.double()
    if decoupled:
        before /= 1 - rate * decay
    elif decay:
        made = made + decay * before
    parameter.copy_(before)
    state["step"].sub_(1)
    if steps == 1:  # there was nothing before
        state["exp_avg"].zero_()
        state["exp_avg_sq"].zero_()
        return
    state["exp_avg"].copy_((first - (1 - beta1) * made) / beta1)
    squared = (second - (1 - beta2) * made**2) / beta2
    state["exp_avg_sq"].copy_(squared.clamp_(min=0))


def _sgd(group: State, parameter: Tensor, gradient: Tensor, state: State) -> None:
    rate, decay, momentum = group["lr"], group["weight_decay"], group["momentum"]
    buffer = state.get("momentum_buffer")
    if not momentum or buffer is None:
        after = parameter.double() + rate * gradient.double()
        parameter.copy_(after / (1 - rate * decay))
        return
    velocity = buffer.double()
    before = parameter.double() + rate * velocity
    made = gradient.double() + decay * before
    parameter.copy_(before)
    buffer.copy_((velocity - made) / momentum)
