"""The norm of the whole gradient, over every rank, and what clipping makes of it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
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


def global_norm(
    turns: Iterable[Iterable[Piece]], *, device: torch.device | str = "cpu"
) -> Tensor:
    """L2 norm over all parameters of the model, each counted once; a 0-d fp32 tensor.

    Pieces come in *turns*, of which each may be let go before the next one. One
    all-reduce of one number over all ranks, from *device* where this one has no piece.
    """
    found = [squares for pieces in turns for squares in _squares(pieces)]
    nothing = torch.zeros((), dtype=torch.float64, device=device)
    total = torch.stack(found).sum() if found else nothing
    if dist.get_world_size() > 1:
        dist.all_reduce(total)
    return total.sqrt().float()


def clip_factor(norm: float, most: float) -> float:
    """What gradients of *norm* are multiplied by so that it is at most *most*; 1 where
    it is, or where *most* is 0.

    >>> clip_factor(0.5, 1.0), round(clip_factor(2.0, 1.0), 3), clip_factor(2.0, 0.0)
    (1.0, 0.5, 1.0)
    """
    factor = most / (norm + 1e-6) if most > 0 else 1.0
    return factor if factor < 1.0 else 1.0


def scale(gradients: Iterable[Tensor], factor: float) -> None:
    """Multiply *gradients* in place."""
    some = list(gradients)
    if factor != 1 and some:
        torch._foreach_mul_(some, factor)


def _squares(pieces: Iterable[Piece]) -> Iterator[Tensor]:
    """Sums of their squares, each piece's by the ranks that hold the same; none of no
    piece, as where all of a stage is frozen."""
    by_copies: dict[int, list[Tensor]] = defaultdict(list)
    for piece in pieces:
        by_copies[piece.copies].append(piece.gradient)
    for copies, gradients in by_copies.items():
        norms = torch.stack(torch._foreach_norm(gradients))
        yield (norms.double() ** 2).sum() / copies


def parts(parameter: Tensor) -> int:
    """Into how many different pieces a parameter's placements cut it; 1 if whole."""
    found = 1
    if isinstance(parameter, DTensor):
        for axis, placement in enumerate(parameter.placements):
            if not placement.is_replicate():
                found *= parameter.device_mesh.size(axis)
    return found
