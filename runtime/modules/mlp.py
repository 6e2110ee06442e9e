"""The MLP of a layer, gated (SwiGLU) or not (GELU)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from profiles.errors import Unsupported
from profiles.models.spec import DecoderSpec


class Mlp(nn.Module):
    """(…, hidden) → ffn → (…, hidden)."""

    def __init__(self, spec: DecoderSpec) -> None:
        super().__init__()
        self.activation = _activation(spec)
        self.gate = (
            nn.Linear(spec.hidden, spec.ffn_hidden, bias=spec.mlp_bias)
            if spec.gated_mlp
            else None
        )
        self.up = nn.Linear(spec.hidden, spec.ffn_hidden, bias=spec.mlp_bias)
        self.down = nn.Linear(spec.ffn_hidden, spec.hidden, bias=spec.mlp_bias)

    def forward(self, stream: Tensor) -> Tensor:
        up = self.up(stream)
        if self.gate is None:
            return self.down(self.activation(up))  # type: ignore[no-any-return]
        return self.down(self.activation(self.gate(stream), up))  # type: ignore[no-any-return]


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
        share = gate.sigmoid()
        swish = gate * share
        slope = share + swish * (1 - share)
        return slope.mul_(made).mul_(up), swish.mul_(made)


class Activation(nn.Module):
    """The function between the products: of one input, or of gate and up."""

    def __init__(self, name: str, *, gated: bool) -> None:
        super().__init__()
        self.name, self.gated = name, gated

    def forward(self, first: Tensor, up: Tensor | None = None) -> Tensor:
        if up is not None and self.name == "silu":
            return SwiGlu.apply(first, up)  # type: ignore[no-any-return, no-untyped-call]
        made = _FUNCTIONS[self.name](first)
        return made if up is None else made * up


def _gelu(value: Tensor) -> Tensor:
    return F.gelu(value, approximate="tanh")


_FUNCTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu": _gelu,
    "relu": F.relu,
    "silu": F.silu,
}


def _activation(spec: DecoderSpec) -> Activation:
    if spec.activation not in _FUNCTIONS:
        raise Unsupported(
            f"activation {spec.activation!r} is not carried out; "
            f"{', '.join(_FUNCTIONS)} are"
        )
    return Activation(spec.activation, gated=spec.gated_mlp)
