"""What whole gradients are all-reduced as, instead of what they are.

BFloat16   a cast, there and back
PowerSgd   M + E ≈ P Qᵀ: P = (M + E) Q is summed and made orthonormal, Q = (M + E)ᵀ P
           summed, and E is what P Qᵀ lacks; vectors and small matrices as they are
           (Vogels et al., NeurIPS 2019, algorithm 1)
Signs      a sign each and the mean size, of pieces that ranks exchange, average and
           gather, again as signs; both sides keep what they left out for the next time
           (Tang et al., 1-bit Adam, ICML 2021, section 4)

What is left out lives in memory alone: after a resume it begins at zero.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import torch
import torch.distributed as dist
from torch import Tensor

from costmodel.operators import GradientCompression
from runtime.parallel.collectives import Group, all_reduce, all_to_all, gathered

SIGNS = 8  # in a byte


class GradientReduction(Protocol):
    """Makes gradients by name, in place, what ranks have on average."""

    sent_bytes: int  # by this rank's all-reduces and gathers, counted once

    def reduce(self, gradients: Mapping[str, Tensor], mean_over: int) -> None:
        """The sum over the group, divided by *mean_over*."""


class BFloat16:
    """Half of fp32's bytes."""

    def __init__(self, group: Group) -> None:
        self._group, self.sent_bytes = group, 0

    def reduce(self, gradients: Mapping[str, Tensor], mean_over: int) -> None:
        for one in gradients.values():
            narrow = (one / mean_over).to(torch.bfloat16)
            self.sent_bytes += narrow.nbytes
            one.copy_(all_reduce(narrow, self._group))


class PowerSgd:
    """Low-rank sums, of a rank as *how* says."""

    def __init__(self, group: Group, how: GradientCompression) -> None:
        self._group, self._how, self.sent_bytes = group, how, 0
        self._right: dict[str, Tensor] = {}  # Q, from step to step
        self._left_out: dict[str, Tensor] = {}

    def reduce(self, gradients: Mapping[str, Tensor], mean_over: int) -> None:
        for name, one in gradients.items():
            rows = len(one) if one.dim() > 1 else 0
            if one.dim() == 2 and self._how.shrinks(rows, one.shape[1]):
                self._low_rank(name, one, mean_over)
            else:
                self._summed(one)
                one /= mean_over

    def _summed(self, one: Tensor) -> Tensor:
        self.sent_bytes += one.nbytes
        return all_reduce(one, self._group)

    def _low_rank(self, name: str, one: Tensor, mean_over: int) -> None:
        whole = one + self._left_out.get(name, 0.0)
        if name not in self._right:
            same = torch.Generator(one.device).manual_seed(len(self._right))
            shape = one.shape[1], self._how.number
            self._right[name] = torch.randn(shape, generator=same, device=one.device)
        left = self._summed(whole @ self._right[name])
        left, _ = torch.linalg.qr(left)
        right = self._summed(whole.t() @ left) / mean_over
        self._right[name] = right
        one.copy_(left @ right.t())
        self._left_out[name] = whole - one


class Signs:
    """The mean of a flat tensor over the group, in a bit an element each way."""

    def __init__(self, group: Group) -> None:
        self._group, self.sent_bytes = group, 0
        self._own: Tensor | None = None
        self._served: Tensor | None = None

    def mean(self, flat: Tensor) -> Tensor:
        """Of fp32 numbers; every rank gets the same."""
        ranks = self._group.size()
        missing = -flat.numel() % (ranks * SIGNS)
        whole = torch.nn.functional.pad(flat, (0, missing))
        whole = whole if self._own is None else whole + self._own
        bits, size = _signs(whole.view(ranks, -1))
        self._own = whole - _back(bits, size).flatten()
        bits, size = all_to_all(bits, self._group), all_to_all(size, self._group)
        piece = _back(bits, size).mean(0)
        piece = piece if self._served is None else piece + self._served
        again, large = _signs(piece.view(1, -1))
        self._served = piece - _back(again, large).flatten()
        every, sizes = again.new_empty(ranks, again.shape[1]), large.new_empty(ranks, 1)
        gathered(every, again, self._group, async_op=False)
        gathered(sizes, large, self._group, async_op=False)
        self.sent_bytes += every.nbytes + sizes.nbytes
        return _back(every, sizes).flatten()[: flat.numel()]


def _signs(rows: Tensor) -> tuple[Tensor, Tensor]:
    """A bit an element, and the mean size of each row."""
    size = rows.abs().mean(1, keepdim=True)
    places = torch.arange(SIGNS, device=rows.device, dtype=torch.uint8)
    bits = (rows >= 0).view(len(rows), -1, SIGNS).to(torch.uint8) << places
    return bits.sum(-1, dtype=torch.uint8), size


def _back(bits: Tensor, size: Tensor) -> Tensor:
    places = torch.arange(SIGNS, device=bits.device, dtype=torch.uint8)
    ones = (bits.unsqueeze(-1) >> places) & 1
    return (ones.flatten(1).float() * 2 - 1) * size


def reduction_of(
    how: GradientCompression, group: Group | None
) -> GradientReduction | None:
    """How whole gradients are reduced over *group*; None as they are."""
    if group is None or dist.get_world_size(group) == 1:
        return None
    if how.kind == "bf16":
        return BFloat16(group)
    return PowerSgd(group, how) if how.kind == "powersgd" else None
