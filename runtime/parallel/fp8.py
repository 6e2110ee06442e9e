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

from dataclasses import dataclass
from typing import Any, Final

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from profiles.measure.timing import WHOLE, scaled_product
from runtime.models import Product, Router, multiplied_by

OPERAND, GRADIENT = torch.float8_e4m3fn, torch.float8_e5m2
SMALLEST = 2.0**-100  # of a largest magnitude: scales and their inverses are finite


def multiply_in_eight_bits(layer: nn.Module) -> None:
    """Let the products of *layer* be those of 8-bit operands, but for routers'."""
    apart = {id(one.linear) for one in layer.modules() if isinstance(one, Router)}
    for part in layer.modules():
        if id(part) not in apart:
            multiplied_by(part, EIGHT_BITS)


@dataclass(frozen=True, slots=True)
class Quantised:
    """A matrix in 8 bits, of whole blocks, and the factor that takes it back; without
    padding it has so many *rows* and *columns*."""

    values: Tensor
    back: Tensor
    rows: int
    columns: int

    def turned(self) -> Quantised:
        """Its transpose, row by row in memory as CUDA multiplies 8 bits."""
        values = self.values.t().contiguous()
        return Quantised(values, self.back, self.columns, self.rows)


def quantised(values: Tensor, number: torch.dtype) -> Quantised:
    """*values* (…, columns) as *number*; nothing waits for the device."""
    columns = values.shape[-1]
    matrix = values.reshape(values.numel() // columns, columns)
    rows = len(matrix)
    if not rows:
        return Quantised(matrix.to(number), matrix.new_ones(()), rows, columns)
    lowest, highest = torch.aminmax(matrix)
    largest = torch.maximum(-lowest, highest).float().clamp(min=SMALLEST)
    ratio = torch.finfo(number).max / largest
    mantissa, _ = torch.frexp(ratio)
    scale = ratio / (2 * mantissa)  # a power of two; no number where values have none
    kept = (_padded(matrix) * scale).to(number)
    return Quantised(kept, scale.reciprocal(), rows, columns)


def product(
    left: Quantised,
    right: Quantised,
    bias: Tensor | None = None,
    *,
    made: torch.dtype,
    exact: bool,
) -> Tensor:
    """*left* times *right* transposed, in the type *made*; *exact* as for
    `scaled_product`."""
    rows, columns = left.rows, right.rows
    if not rows or not left.columns:  # an expert without rows
        return left.back.new_zeros(rows, columns, dtype=made)
    if bias is not None:
        bias = F.pad(bias, (0, len(right.values) - columns))
    scales = left.back, right.back
    whole: Tensor = scaled_product(
        left.values, right.values, scales, bias, made=made, exact=exact
    )
    if whole.shape == (rows, columns):
        return whole
    return whole[:rows, :columns].clone()


def _padded(matrix: Tensor) -> Tensor:
    """*matrix* with zeros, to whole blocks of either side."""
    rows, columns = matrix.shape
    more = (0, -columns % WHOLE, 0, -rows % WHOLE)
    return F.pad(matrix, more) if any(more) else matrix


def _shaped(made: Tensor, *shape: int) -> Tensor:
    """*made* in another shape and no view of it: sums over ranks are in place."""
    found: Tensor = torch.ops.aten._unsafe_view.default(made, shape)
    return found


class _EightBits(Product):
    def __call__(self, stream: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        made: Tensor = _Linear.apply(stream, weight, bias)  # type: ignore[no-untyped-call]
        return made

    def output(self, stream: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        x, w = quantised(stream, OPERAND), quantised(weight, OPERAND)
        made = product(x, w, bias, made=stream.dtype, exact=False)
        return _shaped(made, *stream.shape[:-1], len(weight))

    def to_input(self, made: Tensor, weight: Tensor) -> Tensor:
        return _to_input(quantised(made, GRADIENT), made, weight)

    def to_weight(self, made: Tensor, stream: Tensor) -> Tensor:
        return _to_weight(quantised(made, GRADIENT), stream)


def _to_input(gradient: Quantised, made: Tensor, weight: Tensor) -> Tensor:
    w = quantised(weight, OPERAND).turned()
    found = product(gradient, w, made=made.dtype, exact=True)
    return _shaped(found, *made.shape[:-1], weight.shape[1])


def _to_weight(gradient: Quantised, stream: Tensor) -> Tensor:
    x = quantised(stream, OPERAND).turned()
    return product(gradient.turned(), x, made=stream.dtype, exact=True)


EIGHT_BITS: Final = _EightBits()


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
        gradient = quantised(made, GRADIENT)
        return (
            _to_input(gradient, made, weight) if of_input else None,
            _to_weight(gradient, stream) if of_weight else None,
            made.flatten(0, -2).sum(0) if of_bias else None,
        )
