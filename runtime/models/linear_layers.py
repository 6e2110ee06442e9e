"""The three products of a linear layer, in the numbers that they are given in.

    output            y = x wᵀ + b
    input's gradient  g w
    weight's gradient gᵀ x

`eight_bits` has the same of quantised operands. What calls them holds a `Product` and
asks it, so that splits, recompute and schedules are the same for both.
"""

from __future__ import annotations

from typing import Final, Protocol

import torch.nn.functional as F
from torch import Tensor


class Product(Protocol):
    """How a layer's products are multiplied."""

    def __call__(self, stream: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """The output, as autograd sees it."""

    def output(self, stream: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """The output, of (…, in) and (out, in), without a graph."""

    def to_input(self, made: Tensor, weight: Tensor) -> Tensor:
        """The input's gradient from the output's (…, out)."""

    def to_weight(self, made: Tensor, stream: Tensor) -> Tensor:
        """The weight's gradient from the output's (…, out) and the input (…, in)."""


class _AsGiven:
    def __call__(self, stream: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        return F.linear(stream, weight, bias)

    output = __call__

    def to_input(self, made: Tensor, weight: Tensor) -> Tensor:
        return made @ weight

    def to_weight(self, made: Tensor, stream: Tensor) -> Tensor:
        return made.flatten(0, -2).t() @ stream.flatten(0, -2)


AS_GIVEN: Final[Product] = _AsGiven()
