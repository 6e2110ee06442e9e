"""A small model that is cut into stages, and the pipelines that tests run it in."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from costmodel.schedule.action import Stream
from costmodel.schedule.communication import with_transfers
from costmodel.schedule.schedules import copies_held, streams

BLOCKS, WIDTH, ROWS = 8, 16, 3


class Case(NamedTuple):
    """A pipeline to run."""

    schedule: str
    pp: int
    virtual_stages: int
    micro_batches: int

    @property
    def stages(self) -> int:
        return self.pp * self.virtual_stages

    @property
    def holders(self) -> tuple[tuple[int, ...], ...]:
        """The rank of each stage, once for each copy of the model."""
        return copies_held(self.schedule, self.pp, self.virtual_stages)

    def held(self, rank: int) -> dict[int, int]:
        """The stages of *rank*, in model order, and of which copy each is."""
        return {
            stage: copy
            for stage in range(self.stages)
            for copy, held_by in enumerate(self.holders)
            if held_by[stage] == rank
        }

    @property
    def passes(self) -> tuple[Stream, ...]:
        return streams(*self)

    @property
    def streams(self) -> tuple[Stream, ...]:
        return with_transfers(self.passes, *self.holders)


CASES = {
    2: (
        Case("gpipe", 2, 1, 4),
        Case("1f1b", 2, 1, 1),
        Case("1f1b", 2, 1, 5),
        Case("interleaved", 2, 2, 4),
        Case("zb-h1", 2, 1, 5),
        Case("zb-v", 2, 2, 5),
        Case("dualpipe-v", 2, 2, 6),
        Case("chimera", 2, 1, 6),
    ),
    4: (
        Case("gpipe", 4, 1, 6),
        Case("1f1b", 4, 1, 8),
        Case("interleaved", 4, 2, 4),
        Case("zb-h1", 4, 1, 6),
        Case("zb-interleaved", 4, 2, 8),
        Case("zb-v", 4, 2, 3),
        Case("dualpipe-v", 4, 2, 9),
        Case("chimera", 4, 1, 8),
    ),
}


class Part(nn.Module):
    """Some of the model's blocks; mean squared error where targets are given."""

    def __init__(self, blocks: Mapping[str, nn.Module]) -> None:
        super().__init__()
        self.blocks = nn.ModuleDict(blocks)

    def forward(self, inputs: Tensor, targets: Tensor | None = None) -> Tensor:
        for block in self.blocks.values():
            inputs = block(inputs)
        return inputs if targets is None else F.mse_loss(inputs, targets)


def blocks() -> dict[str, nn.Module]:
    torch.manual_seed(1)
    return {
        str(number): nn.Sequential(
            nn.Linear(WIDTH, 2 * WIDTH), nn.GELU(), nn.Linear(2 * WIDTH, WIDTH)
        )
        for number in range(BLOCKS)
    }


def parts(stages: int) -> list[Part]:
    """The model in *stages* equal parts."""
    names = list(blocks())
    size, whole = BLOCKS // stages, blocks()
    return [
        Part({name: whole[name] for name in names[stage * size : (stage + 1) * size]})
        for stage in range(stages)
    ]


def batch(micro_batches: int) -> tuple[Tensor, Tensor]:
    torch.manual_seed(2)
    shape = (micro_batches * ROWS, WIDTH)
    return torch.randn(shape), torch.randn(shape)


def gradients(modules: Sequence[nn.Module]) -> dict[str, Tensor]:
    return {
        name: parameter.grad.clone()
        for module in modules
        for name, parameter in module.named_parameters()
        if parameter.grad is not None
    }


def single(micro_batches: int) -> tuple[dict[str, Tensor], Tensor]:
    """Gradients and loss of the whole model and the whole batch at once."""
    whole = Part(blocks())
    loss = whole(*batch(micro_batches))
    loss.backward()
    return gradients([whole]), loss.detach()


def held_parts(case: Case, rank: int) -> dict[int, Part]:
    return {
        index: part
        for index, part in enumerate(parts(case.stages))
        if index in case.held(rank)
    }
