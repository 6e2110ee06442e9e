"""Convolutions and poolings from the numbers of their sample key.

(batch, channels, made channels, groups, sides, made sides, window, stride)
(batch, channels, sides, made sides, window)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from profiles.measure.timing.tasks import Tensor

POOLS = ("max-pool-1d", "max-pool-2d", "max-pool-3d")
Sides = tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Convolution:
    """A convolution, or a transposed one, by what goes in and comes out."""

    batch: int
    channels: tuple[int, int]
    groups: int
    sides: Sides
    made_sides: Sides
    window: Sides
    stride: Sides

    @classmethod
    def of(cls, shape: Sides) -> Convolution:
        """From the shape of its key."""
        batch, given, made, groups, *others = shape
        each = len(others) // 4
        sides, made_sides, window, stride = (
            tuple(others[each * n : each * (n + 1)]) for n in range(4)
        )
        return cls(
            batch=batch,
            channels=(given, made),
            groups=groups,
            sides=sides,
            made_sides=made_sides,
            window=window,
            stride=stride,
        )

    @property
    def turned(self) -> bool:
        """Whether it is a transposed one: of strides that make more of a side."""
        return any(
            made > side and step > 1
            for side, made, step in zip(
                self.sides, self.made_sides, self.stride, strict=True
            )
        )

    @property
    def given(self) -> Sides:
        """The shape of what goes in."""
        return (self.batch, self.channels[0], *self.sides)

    @property
    def made(self) -> Sides:
        """And of what comes out, about."""
        return (self.batch, self.channels[1], *self.made_sides)

    @property
    def weight(self) -> Sides:
        """And of the weight."""
        given, made = self.channels
        if self.turned:
            return (given, made // self.groups, *self.window)
        return (made, given // self.groups, *self.window)

    @property
    def padding(self) -> Sides:
        """Around every side, so that so much comes out."""
        whole, parts = self.sides, self.made_sides
        if self.turned:
            whole, parts = parts, whole
        needed = (
            (part - 1) * step + wide - side
            for side, part, wide, step in zip(
                whole, parts, self.window, self.stride, strict=True
            )
        )
        return tuple(max(-(-one // 2), 0) for one in needed)

    def __call__(self, given: Tensor, weight: Tensor) -> Tensor:
        """What it makes of tensors."""
        import torch

        each = len(self.window)
        zeros, ones = [0] * each, [1] * each
        made: Any = torch.convolution(
            *(given, weight, None, self.stride, self.padding, ones),
            *(self.turned, zeros, self.groups),
        )
        return made


def one_pool(shape: Sides) -> tuple[Sides, Sides, Sides, Sides]:
    """What a pooling is given, its window, its stride and its padding."""
    batch, channels, *others = shape
    each = len(others) // 3
    sides, made, window = (tuple(others[each * n : each * (n + 1)]) for n in range(3))
    stride = tuple(max(side // out, 1) for side, out in zip(sides, made, strict=True))
    padding = tuple(
        max(min(-(-((out - 1) * step + wide - side) // 2), wide // 2), 0)
        for side, out, wide, step in zip(sides, made, window, stride, strict=True)
    )
    return (batch, channels, *sides), window, stride, padding
