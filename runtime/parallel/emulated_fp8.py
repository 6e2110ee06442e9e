"""Two early schemes of 8-bit training, emulated on 32-bit numbers of narrow grids.

S2FP8   (Cambier et al., ICLR 2020) each operand X of a product is kept as e5m2 of
        2^β |X|^α, signed, with α = 15/(m − μ) and β = −α μ, where μ and m are the mean
        and the largest log₂|X|: kept tensors have log-mean 0 and log-max 15. Products
        are summed in fp32, weights updated in fp32.
Wang    (Wang et al., NeurIPS 2018) operands are 1-5-2 floats; sums are 1-6-9 floats,
        made in chunks of 64 whose sums are added up; weights are 1-6-9 floats, rounded
        at random when they are updated. (In a chunk terms are added in fp32 here, and
        the chunk's sum is rounded.)

For studies of accuracy: nothing here is faster than fp32.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from runtime.models import Product, Router, multiplied_by

LOG_MAX: Final = 15.0
CHUNK: Final = 64


@dataclass(frozen=True, slots=True)
class Grid:
    """Floats of a sign, *exponent* and *mantissa* bits, the highest exponent kept for
    what is not finite, as in IEEE 754."""

    exponent: int
    mantissa: int

    @property
    def bias(self) -> int:
        return (1 << (self.exponent - 1)) - 1

    @property
    def largest(self) -> float:
        """
        >>> Grid(5, 2).largest
        57344.0
        """
        return (2 - 2.0**-self.mantissa) * 2.0**self.bias

    def rounded(self, values: Tensor, draws: Tensor | None = None) -> Tensor:
        """The nearest of them, ties to even; by *draws* in [0, 1) up or down at random,
        so that the mean stays. What is above the largest is it."""
        _, above = torch.frexp(values)
        least = 1 - self.bias
        ulp = torch.ldexp(torch.ones_like(values), (above - 1).clamp(min=least))
        ulp = ulp * 2.0**-self.mantissa
        places = values / ulp
        whole = places.round() if draws is None else (places + draws).floor()
        return (whole * ulp).clamp(-self.largest, self.largest)


E5M2: Final = Grid(5, 2)
SUMS: Final = Grid(6, 9)  # Wang's 16 bits


def shifted(values: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """S2FP8's α and β of *values*, and them shifted and squeezed, not yet rounded."""
    size = values.abs().double()
    there = size > 0
    logs = size[there].log2()
    if not logs.numel():
        return values.new_ones(()), values.new_zeros(()), values
    mean, most = logs.mean(), logs.max()
    alpha = LOG_MAX / (most - mean).clamp(min=1e-6)
    beta = -alpha * mean
    made = torch.zeros_like(size)
    made[there] = torch.exp2(alpha * logs + beta)
    return alpha, beta, made.copysign(values.double()).to(values.dtype)


def s2fp8(values: Tensor) -> Tensor:
    """*values* as they come back from S2FP8."""
    alpha, beta, made = shifted(values)
    kept = E5M2.rounded(made)
    size = kept.abs().double()
    back = torch.exp2((size.clamp(min=2.0**-60).log2() - beta) / alpha)
    return (back * (size > 0)).copysign(values.double()).to(values.dtype)


def summed_in_chunks(terms: Tensor, grid: Grid = SUMS, chunk: int = CHUNK) -> Tensor:
    """The sum over the last dimension, each addition rounded to *grid*: in chunks, and
    then the chunks' sums (Wang et al., section 2.3); one chunk of all is naive."""
    parts = F.pad(terms, (0, -terms.shape[-1] % chunk)).unflatten(-1, (-1, chunk))
    return _in_turn(_in_turn(parts, grid), grid)


def _in_turn(terms: Tensor, grid: Grid) -> Tensor:
    total = torch.zeros_like(terms[..., 0])
    for number in range(terms.shape[-1]):
        total = grid.rounded(total + terms[..., number])
    return total


def multiplied_in_chunks(left: Tensor, right: Tensor) -> Tensor:
    """(m, k) times (k, n), k in chunks whose sums are added up in 1-6-9."""
    pairs = zip(left.split(CHUNK, 1), right.split(CHUNK, 0), strict=True)
    total: Tensor | None = None
    for one, two in pairs:
        part = SUMS.rounded(one @ two)
        total = part if total is None else SUMS.rounded(total + part)
    assert total is not None, "a product sums over something"
    return total


class _Emulated(Product):
    """A product whose operands are *narrow* ones, summed as *multiply* does."""

    grouped = False

    def __init__(self, narrow: Any, multiply: Any) -> None:
        self._narrow, self._multiply = narrow, multiply

    def __call__(self, stream: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        made: Tensor = _Linear.apply(stream, weight, bias, self)  # type: ignore[no-untyped-call]
        return made

    def output(self, stream: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        rows = self._narrow(stream.flatten(0, -2))
        made = self._multiply(rows, self._narrow(weight).t())
        made = made if bias is None else made + bias
        return made.unflatten(0, stream.shape[:-1])  # type: ignore[no-any-return]

    def to_input(self, made: Tensor, weight: Tensor) -> Tensor:
        rows = self._narrow(made.flatten(0, -2))
        found = self._multiply(rows, self._narrow(weight))
        return found.unflatten(0, made.shape[:-1])  # type: ignore[no-any-return]

    def to_weight(self, made: Tensor, stream: Tensor) -> Tensor:
        columns = self._narrow(made.flatten(0, -2)).t()
        return self._multiply(columns, self._narrow(stream.flatten(0, -2)))  # type: ignore[no-any-return]


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, stream: Tensor, weight: Tensor, bias: Tensor | None, how: _Emulated
    ) -> Tensor:
        ctx.save_for_backward(stream, weight)
        ctx.how = how
        return how.output(stream, weight, bias)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        (made,) = gradients
        stream, weight = ctx.saved_tensors
        of_input, of_weight, of_bias, _ = ctx.needs_input_grad
        both = ctx.how.gradients(made, stream, weight, (of_input, of_weight))
        return *both, made.flatten(0, -2).sum(0) if of_bias else None, None


PRODUCTS: Final = {
    "s2": _Emulated(s2fp8, torch.matmul),
    "wang": _Emulated(E5M2.rounded, multiplied_in_chunks),
}


def multiply_emulated(layer: nn.Module, scheme: str) -> None:
    """Let the products of *layer* be those of *scheme*, but for routers'."""
    apart = {id(one.linear) for one in layer.modules() if isinstance(one, Router)}
    for part in layer.modules():
        if id(part) not in apart:
            multiplied_by(part, PRODUCTS[scheme])


def round_at_random(values: Tensor, seed: int) -> None:
    """Round weights to 1-6-9 floats, in place, by draws that are *seed*'s alone: ranks
    that hold the same weights round them alike."""
    generator = torch.Generator(values.device).manual_seed(seed)
    draws = torch.rand(values.shape, generator=generator, device=values.device)
    values.copy_(SUMS.rounded(values, draws))
