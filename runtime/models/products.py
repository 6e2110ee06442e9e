"""The products of a linear layer, and those of a stack of experts.

    output            y = x wᵀ + b
    input's gradient  g w
    weight's gradient gᵀ x

Rows of experts lie sorted by expert. `grouped_mm` multiplies those of all in one kernel
where it fits; it reads on the device where each expert's rows end, so that the host
waits for nothing. Elsewhere experts have a product each.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import torch
import torch.nn.functional as F
from torch import Tensor

from profiles.measure.timing import ALIGNMENT, HOPPER, capability, grouped_fits

Wanted = tuple[bool, bool]
Gradients = tuple[Tensor | None, Tensor | None]


class Product:
    """How a linear layer's products are multiplied: in the numbers that they are given
    in; `runtime.parallel.fp8` has those of quantised operands."""

    grouped = True  # those of experts by `grouped_mm` where it fits

    def __call__(self, stream: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """The output, as autograd sees it."""
        return F.linear(stream, weight, bias)

    def output(self, stream: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """The output, of (…, in) and (out, in), without a graph."""
        return F.linear(stream, weight, bias)

    def to_input(self, made: Tensor, weight: Tensor) -> Tensor:
        """The input's gradient from the output's (…, out)."""
        return made @ weight

    def to_weight(self, made: Tensor, stream: Tensor) -> Tensor:
        """The weight's gradient from the output's (…, out) and the input (…, in)."""
        return made.flatten(0, -2).t() @ stream.flatten(0, -2)

    def gradients(
        self, made: Tensor, stream: Tensor, weight: Tensor, wanted: Wanted
    ) -> Gradients:
        """Of input and weight, those that are *wanted*."""
        of_input, of_weight = wanted
        return (
            self.to_input(made, weight) if of_input else None,
            self.to_weight(made, stream) if of_weight else None,
        )


AS_GIVEN: Final = Product()


class Counts:
    """How many rows each expert has: on the device; on the host once somebody asks for
    them (`listed`), who waits."""

    __slots__ = ("_ends", "_listed", "on_device")

    def __init__(self, on_device: Tensor, listed: Sequence[int] | None = None) -> None:
        self.on_device = on_device
        self._listed = None if listed is None else list(listed)
        self._ends: Tensor | None = None

    @classmethod
    def evenly(cls, each: int, experts: int, device: torch.device) -> Counts:
        """As many for each."""
        return cls(torch.full((experts,), each, device=device), [each] * experts)

    @property
    def ends(self) -> Tensor:
        """Before which row each expert's end, as `grouped_mm` takes them."""
        if self._ends is None:
            self._ends = self.on_device.cumsum(0, dtype=torch.int32)
        return self._ends

    @property
    def listed(self) -> list[int]:
        if self._listed is None:
            self._listed = self.on_device.tolist()
        return self._listed


def stack_output(
    product: Product, rows: Tensor, counts: Counts, weight: Tensor, bias: Tensor | None
) -> Tensor:
    """Each expert's rows (rows, in) with its weight (experts, out, in)."""
    if _fits(product, rows, weight):
        made = F.grouped_mm(rows, weight.transpose(1, 2), offs=counts.ends)
        if bias is None:
            return made
        of_row = bias.repeat_interleave(counts.on_device, 0, output_size=len(rows))
        return made.add_(of_row)
    made = rows.new_empty(len(rows), weight.shape[1])
    biases = [None] * len(weight) if bias is None else bias.unbind(0)
    given = zip(_apart(rows, counts), weight.unbind(0), biases, strict=True)
    for part, one in zip(_apart(made, counts), given, strict=True):
        part.copy_(product.output(*one))
    return made


def stack_gradients(
    product: Product,
    made: Tensor,
    rows: Tensor,
    counts: Counts,
    weight: Tensor,
    wanted: Wanted,
) -> Gradients:
    """Of the rows and of the whole stack, those that are *wanted*."""
    if _fits(product, rows, weight):
        made = _aligned(made)
        return (
            F.grouped_mm(made, weight, offs=counts.ends) if wanted[0] else None,
            _sums(made, rows, counts) if wanted[1] else None,
        )
    found = (
        torch.empty_like(rows) if wanted[0] else None,
        torch.empty_like(weight) if wanted[1] else None,
    )
    places = (
        [None] * len(weight) if found[0] is None else _apart(found[0], counts),
        [None] * len(weight) if found[1] is None else found[1].unbind(0),
    )
    given = zip(_apart(made, counts), _apart(rows, counts), weight, strict=True)
    for one, *parts in zip(given, *places, strict=True):
        gradients = product.gradients(*one, wanted)
        for part, gradient in zip(parts, gradients, strict=True):
            if part is not None and gradient is not None:
                part.copy_(gradient)
    return found


def stack_of_bias(
    product: Product, made: Tensor, rows: Tensor, counts: Counts, weight: Tensor
) -> Tensor:
    """The biases' gradient (experts, out): each expert's rows of *made*, summed."""
    if _fits(product, rows, weight):
        ones = made.new_ones(len(made), ALIGNMENT // made.itemsize)
        return _sums(ones, _aligned(made), counts)[:, 0].contiguous()
    return torch.stack([part.sum(0) for part in _apart(made, counts)])


def _sums(left: Tensor, right: Tensor, counts: Counts) -> Tensor:
    """Of each expert its rows of *left*, transposed, times those of *right*."""
    made: Tensor = F.grouped_mm(left.t(), right, offs=counts.ends)
    if made.is_cuda and capability(made.device) != HOPPER:
        # What an expert without rows gets there is not written (PyTorch issue 172439).
        made.masked_fill_((counts.on_device == 0).view(-1, 1, 1), 0.0)
    return made


def _aligned(made: Tensor) -> Tensor:
    """*made*, whose rows begin where `grouped_mm` takes them."""
    made = made.contiguous()
    return made.clone() if made.storage_offset() * made.itemsize % ALIGNMENT else made


def _apart(rows: Tensor, counts: Counts) -> Sequence[Tensor]:
    return rows.split(counts.listed)  # type: ignore[no-any-return]


def _fits(product: Product, rows: Tensor, weight: Tensor) -> bool:
    return product.grouped and grouped_fits(rows, weight)
