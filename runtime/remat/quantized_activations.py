"""Activations in fewer bits, by groups of 256 elements with a minimum and a step each.

    16 bits            a cast to bfloat16
    8, 4, 2, 1 bits    (x − minimum) / step, rounded up or down at random so that the
                       mean is x (ActNN, Chen et al., ICML 2021, section 3.2)

Bytes are those of `costmodel.operators.activation_compression.element_bytes`: minimum
and step take 16 bits.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from costmodel.operators import CAST_BITS, GROUP

BYTE = 8


@dataclass(frozen=True, slots=True)
class Packed:
    """A 1-D tensor in fewer bits; `back` gives its approximation."""

    codes: Tensor
    scales: Tensor | None  # (2, groups): minimum, step
    bits: int
    numel: int
    dtype: torch.dtype

    def back(self) -> Tensor:
        """The tensor again, as far as the bits remember it."""
        if self.scales is None:
            return self.codes.to(self.dtype)
        minimum, step = self.scales.float().unsqueeze(-1)
        values = _apart(self.codes, self.bits).view(-1, GROUP)
        flat: Tensor = (values * step + minimum).flatten()[: self.numel]
        return flat.to(self.dtype)

    @property
    def size_bytes(self) -> int:
        """Of all that is kept."""
        kept = (self.codes, self.scales)
        return sum(one.numel() * one.itemsize for one in kept if one is not None)


def packed(flat: Tensor, bits: int) -> Packed:
    """A 1-D floating-point tensor in *bits* (1, 2, 4, 8 or 16) an element."""
    if bits == CAST_BITS:
        return Packed(flat.to(torch.bfloat16), None, bits, flat.numel(), flat.dtype)
    values = _in_groups(flat.float())
    lowest, highest = values.aminmax(dim=1)
    minimum, step = lowest, (highest - lowest) / (2**bits - 1)
    # What is kept rounds them, so the codes are of what is kept.
    scales = torch.stack((minimum, step)).to(torch.bfloat16)
    minimum, step = scales.float().unsqueeze(-1)
    places = (values - minimum) / torch.where(step > 0, step, 1.0)
    places = torch.floor(places + torch.rand_like(places))
    codes = places.clamp_(0, 2**bits - 1).to(torch.uint8)
    return Packed(_together(codes, bits), scales, bits, flat.numel(), flat.dtype)


def _in_groups(flat: Tensor) -> Tensor:
    """(groups, 256), the last one filled up with its own last element."""
    missing = -flat.numel() % GROUP
    if missing:
        flat = torch.cat((flat, flat[-1:].expand(missing)))
    return flat.view(-1, GROUP)


def _together(codes: Tensor, bits: int) -> Tensor:
    """Several codes a byte, the first in the lowest bits."""
    places = codes.view(-1, BYTE // bits)
    found = places[:, 0].clone()
    for number in range(1, BYTE // bits):
        found |= places[:, number] << (number * bits)
    return found


def _apart(found: Tensor, bits: int) -> Tensor:
    shifts = torch.arange(0, BYTE, bits, device=found.device, dtype=torch.uint8)
    codes: Tensor = (found.unsqueeze(-1) >> shifts) & (2**bits - 1)
    return codes.flatten().float()
