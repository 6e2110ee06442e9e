"""Activations in fewer bits, by groups of 256 elements with a minimum and a step each.

    16 bits            a cast to bfloat16
    8, 4, 2, 1 bits    (x − minimum) / step, rounded up or down at random so that the
                       mean is x (ActNN, Chen et al., ICML 2021, section 3.2)
    8 bits, running    the same of a range that runs over the steps, one for 64 columns
                       of what was saved: nothing is kept beside the codes, and what is
                       outside comes back as its end (Mesa, Pan et al., 2021: heads)

Bytes are those of `costmodel.operators.activation_compression.element_bytes`: minimum
and step take 16 bits, the one rounded down and the other up, so that every element is
inside and its mean remains its own.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from costmodel.layout import Treatment
from costmodel.operators import CAST_BITS, GROUP

BYTE: Final = 8
COLUMNS: Final = 64  # with a running range of their own, as of a head
DECAY: Final = 0.9  # of a running range (Mesa, README)
_UPPER_HALF: Final = -(2**16)  # bits of an fp32 that a bfloat16 keeps


@dataclass(frozen=True, slots=True)
class Packed:
    """A 1-D tensor in fewer bits; `back` gives its approximation."""

    codes: Tensor
    scales: Tensor | None  # (2, groups): minimum, step
    bits: int
    numel: int
    dtype: torch.dtype
    columns: int = 0  # of a running range, whose scales are not this tensor's own

    def back(self) -> Tensor:
        """The tensor again, as far as the bits remember it."""
        if self.scales is None:
            return self.codes.to(self.dtype)
        minimum, step = self.scales.float().unsqueeze(-1)
        shape = (-1, len(minimum), self.columns) if self.columns else (-1, GROUP)
        values = _apart(self.codes, self.bits).view(shape)
        flat: Tensor = (values * step + minimum).flatten()[: self.numel]
        return flat.to(self.dtype)

    @property
    def size_bytes(self) -> int:
        """Of all that is kept."""
        own = None if self.columns else self.scales
        return sum(
            one.numel() * one.itemsize for one in (self.codes, own) if one is not None
        )


def packed(flat: Tensor, bits: int, generator: torch.Generator | None = None) -> Packed:
    """A 1-D floating-point tensor in *bits* (1, 2, 4, 8 or 16) an element."""
    if bits == CAST_BITS:
        return Packed(flat.to(torch.bfloat16), None, bits, flat.numel(), flat.dtype)
    values = _in_groups(flat.float())
    lowest, highest = values.aminmax(dim=1)
    minimum = rounded_down(lowest)
    step = -rounded_down((minimum - highest) / (2**bits - 1))
    scales = torch.stack((minimum, step)).to(torch.bfloat16)
    lowest, each = scales.float().unsqueeze(-1)
    codes = _codes(values, lowest, each, bits, generator)
    return Packed(_together(codes, bits), scales, bits, flat.numel(), flat.dtype)


def rounded_down(values: Tensor) -> Tensor:
    """The largest numbers of bfloat16's 16 bits that are not above *values*, in fp32.

    >>> rounded_down(torch.tensor([1.0, 1.001, -1.001])).tolist()
    [1.0, 1.0, -1.0078125]
    """
    whole = values.float().contiguous().view(torch.int32)
    kept = whole & _UPPER_HALF
    above = (whole < 0) & (whole != kept)  # of a negative number, less is nearer to 0
    return (kept - _UPPER_HALF * above.int()).view(torch.float32)


def _codes(
    values: Tensor,
    minimum: Tensor,
    step: Tensor,
    bits: int,
    generator: torch.Generator | None,
) -> Tensor:
    """Places of *values* between the ends of their groups, rounded at random."""
    places = (values - minimum) / torch.where(step > 0, step, 1.0)
    draws = torch.rand(places.shape, device=places.device, generator=generator)
    return torch.floor(places + draws).clamp_(0, 2**bits - 1).to(torch.uint8)


class RunningRange:
    """The range of a saved tensor's columns over the steps; the first is its own."""

    def __init__(self) -> None:
        self._ends: Tensor | None = None  # (2, groups)

    def packed(
        self, flat: Tensor, row: int, generator: torch.Generator | None = None
    ) -> Packed:
        """*flat*, of whole rows of so many elements, by the range of the steps before,
        which then takes in this one's."""
        columns = COLUMNS if row % COLUMNS == 0 else row
        values = flat.float().view(-1, row // columns, columns)
        now = torch.stack((values.amin((0, 2)), values.amax((0, 2))))
        ends = now if self._ends is None else self._ends
        self._ends = DECAY * ends + (1 - DECAY) * now
        scales = torch.stack((ends[0], (ends[1] - ends[0]) / (2**BYTE - 1)))
        minimum, step = scales.unsqueeze(-1)
        codes = _codes(values, minimum, step, BYTE, generator).flatten()
        return Packed(codes, scales, BYTE, flat.numel(), flat.dtype, columns)


Slot = Hashable  # what a saved tensor is called from step to step


class Quantizer:
    """Packs a stage's saved tensors by what they are called.

    `chosen` are bits of some, instead of those of their treatments; `packs` what each
    had when it was last packed: elements, and its treatment's bits. Draws are of
    *generator*, or of torch's own.
    """

    def __init__(self) -> None:
        self.chosen: dict[Slot, int] = {}
        self.packs: dict[Slot, tuple[int, int]] = {}
        self.generator: torch.Generator | None = None
        self._ranges: dict[Slot, RunningRange] = {}

    def pack(self, slot: Slot, flat: Tensor, row: int, how: Treatment) -> Packed:
        """*flat*, rows of so many elements, as *how* says."""
        assert how.bits is not None, "what is compressed has bits"
        self.packs[slot] = flat.numel(), how.bits
        if how.running and row and flat.numel() % row == 0:
            found = self._ranges.setdefault(slot, RunningRange())
            return found.packed(flat, row, self.generator)
        return packed(flat, self.chosen.get(slot, how.bits), self.generator)


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
