"""Experts that tokens are routed to, as one operator of fixed shapes.

Which rows an expert gets depends on numbers, which a trace has not. Modules that are
known for it (Hugging Face's `…Experts`, called with tokens, chosen experts and their
weights) are traced as `meshwright::routed_experts`: what all experts do together does
not depend on who gets which row. It has no kernel: it is never run.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from math import prod
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


@torch.library.custom_op(f"meshwright::{NAME}_backward", mutates_args=())
def routed_experts_backward(
    tokens: Tensor,
    index: Tensor,
    weights: Tensor,
    up: Tensor,
    down: Tensor,
    wanted: int,
) -> list[Tensor]:
    """Gradients of tokens, weights and the experts' own; *wanted* counts those of the
    products' operands."""
    raise NotImplementedError("a trace computes nothing")


@routed_experts_backward.register_fake
def _alike(
    tokens: Tensor,
    index: Tensor,
    weights: Tensor,
    up: Tensor,
    down: Tensor,
    wanted: int,
) -> list[Tensor]:
    return [torch.empty_like(one) for one in (tokens, weights, up, down)]


def _gradients(ctx: Any, gradients: Any) -> Any:
    given = ctx.saved_tensors[:5]
    of_tokens, _, _, of_up, of_down, _ = ctx.needs_input_grad
    # Bits: of what both products multiply, and of each one's weight.
    wanted = of_tokens | of_up << 1 | of_down << 2 | (of_tokens or of_up) << 3
    with torch.no_grad():
        tokens, weights, up, down = routed_experts_backward(*given, wanted)
    return tokens, None, weights, up, down, None


routed_experts.register_autograd(_gradients, setup_context=_keep)


@register_flop_formula(torch.ops.meshwright.routed_experts)
def _flops(
    tokens: Any, index: Any, weights: Any, up: Any, down: Any, *_: Any, **__: Any
) -> int:
    return _products(tokens, index, (up, 1), (down, 1))


@register_flop_formula(torch.ops.meshwright.routed_experts_backward)
def _backward_flops(
    tokens: Any, index: Any, weights: Any, up: Any, down: Any, wanted: int, **_: Any
) -> int:
    of_tokens, of_up, of_down, inside = (wanted >> bit & 1 for bit in range(4))
    return _products(tokens, index, (up, of_tokens + of_up), (down, inside + of_down))


def _products(tokens: Any, index: Any, *times: tuple[Any, int]) -> int:
    """FLOPs of so many products of all rows with each expert's weight."""
    rows = tokens[0] * index[-1]
    return int(sum(2 * rows * n * prod(one) // one[0] for one, n in times))


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
