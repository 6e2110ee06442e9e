"""Residual networks and U-Nets in plain PyTorch, as torchvision and MONAI do it."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from profiles.models import model
from profiles.models.spec import BOTTLENECK, ResnetSpec, UnetSpec


class Residual(nn.Module):
    """A basic block or a bottleneck, whose 3×3 has the stride."""

    def __init__(self, spec: ResnetSpec, made: int, wide: int, base: int, step: int):
        super().__init__()
        out = base * (4 if spec.block == BOTTLENECK else 1)
        if spec.block == BOTTLENECK:
            sizes = [(made, wide, 1, 1), (wide, wide, 3, step), (wide, out, 1, 1)]
        else:
            sizes = [(made, out, 3, step), (out, out, 3, 1)]
        steps: list[nn.Module] = []
        for one, other, window, stride in sizes:
            steps += [
                nn.Conv2d(one, other, window, stride, window // 2, bias=False),
                nn.BatchNorm2d(other),
                nn.ReLU(inplace=True),
            ]
        self.branch = nn.Sequential(*steps[:-1])
        self.skip: nn.Module = nn.Identity()
        if step != 1 or made != out:
            shortcut = nn.Conv2d(made, out, 1, step, bias=False)
            self.skip = nn.Sequential(shortcut, nn.BatchNorm2d(out))
        self.last = nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Any:
        return self.last(self.branch(x) + self.skip(x))


def resnet(spec: ResnetSpec) -> nn.Sequential:
    """The classifier of *spec*, whose blocks are not preactivated."""
    base, made = spec.base_channels, spec.base_channels
    layers: list[nn.Module] = [
        nn.Conv2d(spec.channels, base, 7, 2, 3, bias=False),
        nn.BatchNorm2d(base),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(3, 2, 1),
    ]
    for number, count in enumerate(spec.blocks):
        for place in range(count):
            step = 2 if number and not place else 1
            wide = round(base * spec.width)
            layers.append(Residual(spec, made, wide, base, step))
            made = base * (4 if spec.block == BOTTLENECK else 1)
        base *= 2
    layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(made, spec.classes)]
    return nn.Sequential(*layers)


class Unet(nn.Module):
    """Levels down and up, each way up beside what its level made on the way down."""

    def __init__(self, spec: UnetSpec) -> None:
        super().__init__()
        self.kinds: list[Any] = [nn.Conv2d, nn.BatchNorm2d, nn.ConvTranspose2d]
        if spec.dimensions == 3:
            self.kinds = [nn.Conv3d, nn.BatchNorm3d, nn.ConvTranspose3d]
        self.spec = spec
        convolution, _, transposed = self.kinds
        wide = [spec.features_at(level) for level in range(spec.depth + 1)]
        self.top = self._top(wide[0])
        pairs = list(pairwise(wide))
        self.down = nn.ModuleList(self._down(*pair) for pair in pairs)
        self.up, self.narrowed, self.beside = (nn.ModuleList() for _ in range(3))
        for one, below in reversed(pairs):
            self.up.append(transposed(below, one, 2, 2))
            if spec.strided:
                self.narrowed.append(convolution(2 * one, below, 1))
            first = below if spec.strided else 2 * one
            self.beside.append(self._twice(first, one, 1))
        self.last = nn.Sequential(convolution(wide[0], spec.classes, 1))
        if spec.strided:
            narrow = min(wide[0] // 2, 32)
            self.last = nn.Sequential(
                transposed(wide[0], narrow, 2, 2),
                nn.LeakyReLU(),
                convolution(narrow, spec.classes, 3, 1, 1),
            )

    def _normed(self, one: int, other: int, step: int) -> list[nn.Module]:
        convolution, norm, _ = self.kinds
        active = nn.LeakyReLU() if self.spec.strided else nn.ReLU(inplace=True)
        return [convolution(one, other, 3, step, 1, bias=False), norm(other), active]

    def _twice(self, one: int, other: int, step: int) -> nn.Sequential:
        first = self._normed(one, other, step)
        if self.spec.strided:
            return nn.Sequential(*first, self.kinds[0](other, other, 3, 1, 1))
        return nn.Sequential(*first, *self._normed(other, other, 1))

    def _top(self, wide: int) -> nn.Sequential:
        if self.spec.strided:
            return nn.Sequential(*self._normed(self.spec.channels, wide, 2))
        return self._twice(self.spec.channels, wide, 1)

    def _down(self, one: int, other: int) -> nn.Sequential:
        if self.spec.strided:
            return self._twice(one, other, 2)
        pool = nn.MaxPool3d(2) if self.spec.dimensions == 3 else nn.MaxPool2d(2)
        return nn.Sequential(pool, self._twice(one, other, 1))

    def forward(self, x: Tensor) -> Any:
        made = [self.top(x)]
        for level in self.down:
            made.append(level(made[-1]))
        x = made.pop()
        for place, up in enumerate(self.up):
            x = torch.cat([up(x), made.pop()], 1)
            if self.spec.strided:
                x = self.narrowed[place](x)
            x = self.beside[place](x)
        return self.last(x)


class Segmented(nn.Module):
    """A U-Net of the catalogue with the loss of each position's class."""

    def __init__(self, name: str) -> None:
        super().__init__()
        spec = model(name).spec
        assert isinstance(spec, UnetSpec)
        self.spec = spec
        self.net = Unet(spec)

    def forward(self, image: Tensor, labels: Tensor) -> Tensor:
        return nn.functional.cross_entropy(self.net(image), labels)

    def example_inputs(self) -> tuple[Tensor, Tensor]:
        sides = (self.spec.image_size,) * self.spec.dimensions
        return torch.zeros(1, self.spec.channels, *sides), torch.zeros(1, *sides).long()


def unet_2d() -> nn.Module:
    return Segmented("unet-2d")


def unet_3d() -> nn.Module:
    return Segmented("unet-3d")
