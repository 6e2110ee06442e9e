"""Experts that tokens are routed to, as one operator of fixed shapes.

Which rows an expert gets depends on numbers, which a trace has not. Modules that are
known for it (Hugging Face's `…Experts`, called with tokens, chosen experts and their
weights) are traced as `meshwright::routed_experts`: what all experts do together does
not depend on who gets which row. It has no kernel: it is never run.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import register_flop_formula

NAME = "routed_experts"


@torch.library.custom_op(f"meshwright::{NAME}", mutates_args=())
def routed_experts(
    tokens: Tensor, index: Tensor, weights: Tensor, up: Tensor, down: Tensor, out: int
) -> list[Tensor]:
    """What the experts give to *tokens*, and what they keep for backward: rows, the
    first product, the activation, what the second product multiplies, and that product.
    *up* and *down* are the experts' weights, *out* is the width inside."""
    raise NotImplementedError("a trace computes nothing")


@routed_experts.register_fake
def _shapes(
    tokens: Tensor, index: Tensor, weights: Tensor, up: Tensor, down: Tensor, out: int
) -> list[Tensor]:
    rows, hidden = tokens.shape[0] * index.shape[-1], tokens.shape[-1]
    wide = up.numel() // up.shape[0] // hidden
    widths = (hidden, wide, out, out, hidden)
    made = [tokens.new_empty((rows, width)) for width in widths]
    return [torch.empty_like(tokens), *made]


def _keep(ctx: Any, inputs: Any, output: Any) -> None:
    ctx.save_for_backward(*inputs[:5], *output[1:])


def _gradients(ctx: Any, gradients: Any) -> Any:
    tokens, _, weights, up, down, *_ = ctx.saved_tensors
    with torch.no_grad():
        return (
            torch.empty_like(tokens),
            None,
            torch.empty_like(weights),
            torch.empty_like(up),
            torch.empty_like(down),
            None,
        )


routed_experts.register_autograd(_gradients, setup_context=_keep)


@register_flop_formula(torch.ops.meshwright.routed_experts)
def _flops(
    tokens: Any, index: Any, weights: Any, up: Any, down: Any, *_: Any, **__: Any
) -> int:
    rows, experts = tokens[0] * index[-1], up[0]
    sizes = [torch.Size(one).numel() // experts for one in (up, down)]
    return int(2 * rows * sum(sizes))


def is_routed(module: nn.Module) -> bool:
    """Whether its class is one of experts that are called with tokens, indices and
    weights."""
    up, down = (getattr(module, name, None) for name in ("gate_up_proj", "down_proj"))
    return (
        type(module).__name__.endswith("Experts")
        and isinstance(up, nn.Parameter)
        and isinstance(down, nn.Parameter)
        and up.ndim == down.ndim == 3
    )


@contextmanager
def opaque(module: nn.Module) -> Iterator[None]:
    """The routed parts of *module* as one operator each."""
    with ExitStack() as undo:
        for one in module.modules():
            if is_routed(one):
                one.forward = _standing_for(one)
                undo.callback(one.__dict__.pop, "forward")
        yield


def _standing_for(experts: Any) -> Any:
    def forward(tokens: Tensor, index: Tensor, weights: Tensor) -> Tensor:
        down = experts.down_proj
        hidden = tokens.shape[-1]
        inside = down.numel() // down.shape[0] // hidden
        up = experts.gate_up_proj
        made: Tensor = routed_experts(tokens, index, weights, up, down, inside)[0]
        return made

    return forward
