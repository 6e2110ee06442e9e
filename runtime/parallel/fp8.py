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
Float8Linear does, by the scales that forward found. Head, embedding, router and loss
are no products of these.

On a device each operator here is a kernel or two: five quantise a matrix, two where its
scale is known, two transpose it.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import frexp, inf
from typing import Any, Final

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from profiles.measure.timing import WHOLE, scaled_product
from runtime.models import Gradients, Product, Router, Wanted, multiplied_by

OPERAND, GRADIENT = torch.float8_e4m3fn, torch.float8_e5m2
SMALLEST = 2.0**-100  # of a largest magnitude: scales and their inverses are finite
# Both formats go up to 1.75 · 2ⁿ. By this factor what has a larger mantissa than that,
# in the 8 bits of bfloat16, comes to the next power of two, and nothing else does.
ROUND_UP: Final = 8 / 7 * (1 - 2.0**-10)
EXPONENT: Final = 0x7F800000  # bits of an fp32
WORD: Final = 4  # bytes


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
        values = transposed(self.values)
        return Quantised(values, self.back, self.columns, self.rows)


def quantised(
    values: Tensor, number: torch.dtype, back: Tensor | None = None
) -> Quantised:
    """*values* (…, columns) as *number*, by the factor *back* where it is known;
    nothing waits for the device."""
    columns = values.shape[-1]
    matrix = values.reshape(values.numel() // columns, columns)
    rows = len(matrix)
    if not rows:
        return Quantised(matrix.to(number), matrix.new_ones(()), rows, columns)
    matrix = _padded(matrix).contiguous()
    if back is None:
        back = _back(matrix, number)
    # A list of one: a device's kernels for lists read its scale and are vectorised,
    # those that broadcast one are not.
    (scaled,) = torch._foreach_div([matrix], _as(back, matrix.dtype))
    return Quantised(scaled.to(number), back, rows, columns)


def _back(matrix: Tensor, number: torch.dtype) -> Tensor:
    """The factor that takes *matrix* as *number* back, a 0-d fp32 tensor; infinite
    where not all of it is finite."""
    _, above = frexp(torch.finfo(number).max)
    unit = 2.0 ** (1 - above)
    largest = torch.linalg.vector_norm(
        matrix, inf, dim=(0, 1), keepdim=True, dtype=torch.float32
    )
    # SMALLEST + ROUND_UP · largest in one operator; its exponent is what is left.
    most = torch.rsub(largest, SMALLEST * unit, alpha=-ROUND_UP * unit)
    return most.view(torch.int32).bitwise_and_(EXPONENT).view(torch.float32).view(())


def _as(power: Tensor, kind: torch.dtype) -> Tensor:
    """A power of two as *kind*: the upper half of an fp32 is a bfloat16, of no cost."""
    if kind is torch.bfloat16:
        return power.view(1).view(kind)[1]
    return power.to(kind)


def transposed(values: Tensor) -> Tensor:
    """(rows, columns) bytes → (columns, rows), of whole words a row: words are
    transposed, then the bytes of as many rows taken apart. Single bytes of a column
    would each be read from a line of memory of its own."""
    rows, columns = values.shape
    if not rows:
        return values.view(columns, rows)
    words = values.view(torch.int32).t().contiguous()
    in_words = words.view(torch.uint8).view(columns // WORD, rows, WORD)
    whole = in_words.transpose(1, 2).contiguous()
    return whole.view(columns, rows).view(values.dtype)


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
    more = len(right.values) - columns
    if bias is not None and more:
        bias = F.pad(bias, (0, more))
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
    grouped = False

    def __call__(self, stream: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        made: Tensor = _Linear.apply(stream, weight, bias)  # type: ignore[no-untyped-call]
        return made

    def output(self, stream: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        made, _ = _output(stream, weight, bias)
        return made

    def to_input(self, made: Tensor, weight: Tensor) -> Tensor:
        return _to_input(quantised(made, GRADIENT), made, weight)

    def to_weight(self, made: Tensor, stream: Tensor) -> Tensor:
        return _to_weight(quantised(made, GRADIENT), stream)

    def gradients(
        self,
        made: Tensor,
        stream: Tensor,
        weight: Tensor,
        wanted: Wanted,
        backs: Backs = (None, None),
    ) -> Gradients:
        """The same of one quantised *made*; *backs* are factors of the other two."""
        gradient = quantised(made, GRADIENT)
        return (
            _to_input(gradient, made, weight, backs[1]) if wanted[0] else None,
            _to_weight(gradient, stream, backs[0]) if wanted[1] else None,
        )


Backs = tuple[Tensor | None, Tensor | None]


def _output(
    stream: Tensor, weight: Tensor, bias: Tensor | None
) -> tuple[Tensor, Backs]:
    """The output, and the factors of stream and weight."""
    x, w = quantised(stream, OPERAND), quantised(weight, OPERAND)
    made = product(x, w, bias, made=stream.dtype, exact=False)
    return _shaped(made, *stream.shape[:-1], len(weight)), (x.back, w.back)


def _to_input(
    gradient: Quantised, made: Tensor, weight: Tensor, back: Tensor | None = None
) -> Tensor:
    w = quantised(weight, OPERAND, back).turned()
    found = product(gradient, w, made=made.dtype, exact=True)
    return _shaped(found, *made.shape[:-1], weight.shape[1])


def _to_weight(
    gradient: Quantised, stream: Tensor, back: Tensor | None = None
) -> Tensor:
    x = quantised(stream, OPERAND, back).turned()
    return product(gradient.turned(), x, made=stream.dtype, exact=True)


EIGHT_BITS: Final = _EightBits()


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, stream: Tensor, weight: Tensor, bias: Tensor | None
    ) -> Tensor:
        ctx.save_for_backward(stream, weight)
        made, ctx.backs = _output(stream, weight, bias)
        return made

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        (made,) = gradients
        stream, weight = ctx.saved_tensors
        of_input, of_weight, of_bias = ctx.needs_input_grad
        wanted = of_input, of_weight
        of_both = EIGHT_BITS.gradients(made, stream, weight, wanted, ctx.backs)
        return *of_both, made.flatten(0, -2).sum(0) if of_bias else None
