"""The norm of the whole gradient, over every rank, and clipping by it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor


@dataclass(frozen=True, slots=True)
class Piece:
    """A local gradient, and how many ranks of the job hold the same numbers."""

    gradient: Tensor
    copies: int


def global_norm(pieces: Iterable[Piece]) -> Tensor:
    """L2 norm over all parameters of the model, each counted once; a 0-d fp32 tensor.

    One all-reduce of one number over all ranks.
    """
    by_copies: dict[int, list[Tensor]] = defaultdict(list)
    for piece in pieces:
        by_copies[piece.copies].append(piece.gradient)
    device = next(iter(by_copies.values()))[0].device
    total = torch.zeros((), dtype=torch.float64, device=device)
    for copies, gradients in by_copies.items():
        norms = torch.stack(torch._foreach_norm(gradients)).double()
        total += (norms**2).sum() / copies
    if dist.get_world_size() > 1:
        dist.all_reduce(total)
    return total.sqrt().float()


def clip(gradients: list[Tensor], norm: Tensor, most: float) -> None:
    """Scale *gradients* in place so that their global norm is at most *most*."""
    if most > 0:
        factor = (most / (norm + 1e-6)).clamp(max=1.0)
        if float(factor) < 1.0:
            torch._foreach_mul_(gradients, factor)


def parts(parameter: Tensor) -> int:
    """Into how many different pieces a parameter's placements cut it; 1 if whole."""
    found = 1
    if isinstance(parameter, DTensor):
        for axis, placement in enumerate(parameter.placements):
            if not placement.is_replicate():
                found *= parameter.device_mesh.size(axis)
    return found
