"""Products of 8-bit floats: how the policy fp8 multiplies in its layers.

    x, w   e4m3: 3 bits of mantissa, up to 448           forward and both gradients
    g      e5m2: 2 bits, up to 57,344                    gradients of outputs

(Micikevicius et al., FP8 Formats for Deep Learning, 2022, section 3.) Each operand is
scaled by the power of two that takes its largest magnitude just below the format's:
scaling rounds nothing, and tensors that differ in their largest element alone are
quantised alike but for the smallest. The scale is that of what a rank multiplies (a
shard's own under tensor parallelism, an expert's own), so that no rank has to be asked.

Saved for backward are the 16-bit operands, which other operators keep as well and
treatments of layers know by name; backward quantises them again, as torchao's
Float8Linear does. Head, embedding, router and loss are no products of these.
"""

from __future__ import annotations

from math import inf
from typing import Any, Final

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from profiles.measure.eight_bits import WHOLE, scaled_product
from runtime.modules.experts import Router
from runtime.product import Product
from runtime.split_backward import multiplied_by

OPERAND, GRADIENT = torch.float8_e4m3fn, torch.float8_e5m2
SMALLEST = 2.0**-100  # of a largest magnitude: scales and their inverses are finite


def multiply_in_eight_bits(layer: nn.Module) -> None:
    """Let the products of *layer* be those of 8-bit operands, but for routers'."""
    apart = {id(one.linear) for one in layer.modules() if isinstance(one, Router)}
    for part in layer.modules():
        if id(part) not in apart:
            multiplied_by(part, EIGHT_BITS)


def quantised(values: Tensor, number: torch.dtype) -> tuple[Tensor, Tensor]:
    """*values* (rows, columns) as *number*, row by row in memory, and the factor that
    takes them back; nothing waits for the device."""
    largest = torch.linalg.vector_norm(values, inf).float().clamp(min=SMALLEST)
    ratio = torch.finfo(number).max / largest
    mantissa, _ = torch.frexp(ratio)
    scale = ratio / (2 * mantissa)  # a power of two; no number where values have none
    kept = (values * scale).to(number, memory_format=torch.contiguous_format)
    return kept, scale.reciprocal()


def product(
    one: tuple[Tensor, torch.dtype],
    other: tuple[Tensor, torch.dtype],
    bias: Tensor | None = None,
    *,
    exact: bool,
) -> Tensor:
    """(m, k) times (n, k) transposed, each with the format it is quantised to; *exact*
    as for `scaled_product`."""
    (rows, _), (columns, _) = one[0].shape, other[0].shape
    if not one[0].numel() or not other[0].numel():  # an expert without rows
        return one[0].new_zeros(rows, columns)
    left, left_scale = quantised(_padded(one[0]), one[1])
    right, right_scale = quantised(_padded(other[0]), other[1])
    if bias is not None:
        bias = F.pad(bias, (0, right.shape[0] - columns))
    made: Tensor = scaled_product(
        left,
        right,
        (left_scale, right_scale),
        bias,
        made=one[0].dtype,
        exact=exact,
    )
    if made.shape == (rows, columns):
        return made
    return made[:rows, :columns].clone()


def _padded(values: Tensor) -> Tensor:
    """*values* with zeros, to whole blocks of either side."""
    rows, columns = values.shape
    more = (0, -columns % WHOLE, 0, -rows % WHOLE)
    return F.pad(values, more) if any(more) else values


def _shaped(made: Tensor, *shape: int) -> Tensor:
    """*made* in another shape and no view of it: sums over ranks are in place."""
    found: Tensor = torch.ops.aten._unsafe_view.default(made, shape)
    return found


class _EightBits:
    def __call__(self, stream: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        made: Tensor = _Linear.apply(stream, weight, bias)  # type: ignore[no-untyped-call]
        return made

    def output(self, stream: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        rows = stream.reshape(-1, stream.shape[-1])
        made = product((rows, OPERAND), (weight, OPERAND), bias, exact=False)
        return _shaped(made, *stream.shape[:-1], len(weight))

    def to_input(self, made: Tensor, weight: Tensor) -> Tensor:
        rows = made.reshape(-1, made.shape[-1])
        found = product((rows, GRADIENT), (weight.t(), OPERAND), exact=True)
        return _shaped(found, *made.shape[:-1], weight.shape[1])

    def to_weight(self, made: Tensor, stream: Tensor) -> Tensor:
        gradients = made.reshape(-1, made.shape[-1])
        rows = stream.reshape(-1, stream.shape[-1])
        return product((gradients.t(), GRADIENT), (rows.t(), OPERAND), exact=True)


EIGHT_BITS: Final[Product] = _EightBits()


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, stream: Tensor, weight: Tensor, bias: Tensor | None
    ) -> Tensor:
        ctx.save_for_backward(stream, weight)
        return EIGHT_BITS.output(stream, weight, bias)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        (made,) = gradients
        stream, weight = ctx.saved_tensors
        of_input, of_weight, of_bias = ctx.needs_input_grad
        return (
            EIGHT_BITS.to_input(made, weight) if of_input else None,
            EIGHT_BITS.to_weight(made, stream) if of_weight else None,
            made.flatten(0, -2).sum(0) if of_bias else None,
        )
