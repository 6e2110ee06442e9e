"""The MLP of a layer, gated (SwiGLU) or not (GELU)."""

from __future__ import annotations

from collections.abc import Callable

import torch.nn.functional as F
from torch import Tensor, nn

from profiles.errors import Unsupported
from profiles.measure.timing import functions
from profiles.models import DecoderSpec, activation_function

PLAIN = ("gelu", "relu", "silu")
GATED = ("swiglu", "geglu", "reglu")  # silu … of the gate, times the other product


class Mlp(nn.Module):
    """(…, hidden) → *width* → (…, hidden)."""

    def __init__(self, spec: DecoderSpec, width: int) -> None:
        super().__init__()
        self.activation = activation_of(spec)
        self.gate = (
            nn.Linear(spec.hidden, width, bias=spec.mlp_bias)
            if spec.gated_mlp
            else None
        )
        self.up = nn.Linear(spec.hidden, width, bias=spec.mlp_bias)
        self.down = nn.Linear(width, spec.hidden, bias=spec.mlp_bias)

    def forward(self, stream: Tensor) -> Tensor:
        return self.down(self.activation(*self.inner(stream)))  # type: ignore[no-any-return]

    def inner(self, stream: Tensor) -> tuple[Tensor, ...]:
        """What the function between the products takes: gate, if it has one, and up."""
        if self.gate is None:
            return (self.up(stream),)
        return self.gate(stream), self.up(stream)


def exact_geglu(gate: Tensor, up: Tensor) -> Tensor:
    """The GELU of the gate by erf, times the other product."""
    return F.gelu(gate) * up


def activation_of(spec: DecoderSpec) -> Callable[..., Tensor]:
    """The function between the products, the one that is timed: of one input, or of
    gate and up."""
    allowed = GATED if spec.gated_mlp else PLAIN
    name = activation_function(spec)
    if spec.activation == "gelu" and spec.numerics.exact_gelu:
        return exact_geglu if spec.gated_mlp else F.gelu
    if name not in allowed:
        form = "with" if spec.gated_mlp else "without"
        raise Unsupported(
            f"activation {spec.activation!r} is not supported {form} a gate; "
            f"{', '.join(allowed)} are"
        )
    return functions()[name]
