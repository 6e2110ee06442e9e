"""Collectives over one dimension of a tensor, under the names of each torch version.

2.13 renamed `all_gather_into_tensor` and `reduce_scatter_tensor`; the old names warn.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

Group = dist.ProcessGroup
Exchange = Callable[[Tensor], Tensor]
_all_gather = getattr(dist, "all_gather_single", dist.all_gather_into_tensor)
_reduce_scatter = getattr(dist, "reduce_scatter_single", dist.reduce_scatter_tensor)


@dataclass(slots=True)
class Pending:
    """A collective on its way: `wait` gives its result, or its error by its name."""

    operation: str
    work: Any
    finish: Callable[[], Tensor]

    def wait(self) -> Tensor:
        try:
            self.work.wait()
        except RuntimeError as error:
            error.add_note(self.operation)
            raise
        return self.finish()


@dataclass(slots=True)
class _Messages:
    """Messages both ways; what is sent is held until it has left."""

    works: list[Any]
    sent: Tensor

    def wait(self) -> None:
        for work in self.works:
            work.wait()


def all_reduce(tensor: Tensor, group: Group, *, largest: bool = False) -> Tensor:
    """The sum (or the largest) over the group, in place."""
    operation = dist.ReduceOp.MAX if largest else dist.ReduceOp.SUM
    dist.all_reduce(tensor, op=operation, group=group)
    return tensor


def all_reduce_from(tensor: Tensor, group: Group, device: torch.device) -> Tensor:
    """The sum over the group, in place, of a tensor that may be on the host: it
    travels by way of *device*, which the group is of."""
    if tensor.device.type == device.type:
        return all_reduce(tensor, group)
    return tensor.copy_(all_reduce(tensor.to(device), group))


def sum_together(
    parts: Sequence[Tensor],
    group: Group | None,
    device: torch.device,
    *,
    mean_over: int = 1,
) -> None:
    """Each of *parts* summed over the group and divided by *mean_over*, in place, in
    one message by way of *device*."""
    if not parts:
        return
    flat = torch.cat([part.flatten() for part in parts])
    if group is not None:
        all_reduce_from(flat, group, device)
    if mean_over > 1:
        flat.div_(mean_over)
    sizes = [part.numel() for part in parts]
    for part, whole in zip(parts, flat.split(sizes), strict=True):
        part.copy_(whole.view_as(part))


def start_all_reduce(tensor: Tensor, group: Group) -> Pending:
    """The sum over the group, in place, on its way."""
    work = dist.all_reduce(tensor, group=group, async_op=True)
    return Pending("all_reduce", work, lambda: tensor)


def start_all_gather(tensor: Tensor, group: Group, *, dim: int) -> Pending:
    """The ranks' pieces side by side along *dim*, on its way."""
    ranks = group.size()
    piece = tensor.contiguous()
    gathered = piece.new_empty(ranks, *piece.shape)
    work = _all_gather(gathered.flatten(0, 1), piece, group=group, async_op=True)

    def joined() -> Tensor:
        return gathered.movedim(0, dim).flatten(dim, dim + 1)

    return Pending("all_gather", work, joined)


def gathered(whole: Tensor, own: Tensor, group: Group, *, async_op: bool) -> Any:
    """Fill *whole* with the ranks' *own* pieces; the work, where it is on its way."""
    return _all_gather(whole, own, group=group, async_op=async_op)


def start_shift(tensor: Tensor, group: Group) -> Pending:
    """What the rank before sends, as this one sends *tensor* to the next: a ring."""
    ranks = dist.get_process_group_ranks(group)
    sent = tensor.contiguous()
    came = torch.empty_like(sent)
    after, before = ranks[(group.rank() + 1) % len(ranks)], ranks[group.rank() - 1]
    works = dist.batch_isend_irecv(
        [
            dist.P2POp(dist.isend, sent, after, group),
            dist.P2POp(dist.irecv, came, before, group),
        ]
    )
    return Pending("send and receive", _Messages(works, sent), lambda: came)


def all_to_all(pieces: Tensor, group: Group) -> Tensor:
    """Piece i of (ranks, …) goes to rank i; piece i of the result came from rank i."""
    given = pieces.contiguous()
    came = torch.empty_like(given)
    dist.all_to_all_single(came, given, group=group)
    return came


def uneven_all_to_all(
    rows: Tensor, came: list[int], sent: list[int], group: Group
) -> Tensor:
    """`sent[i]` of *rows*, in order, go to rank i; `came[i]` of the result are its."""
    arrived = rows.new_empty(sum(came), *rows.shape[1:])
    dist.all_to_all_single(arrived, rows.contiguous(), came, sent, group=group)
    return arrived


def start_reduce_scatter(tensor: Tensor, group: Group, *, dim: int) -> Pending:
    """This rank's piece, along *dim*, of the sum over the group, on its way."""
    ranks = group.size()
    pieces = tensor.unflatten(dim, (ranks, -1)).movedim(dim, 0).contiguous()
    mine = torch.empty_like(pieces[0])
    work = _reduce_scatter(mine, pieces.flatten(0, 1), group=group, async_op=True)
    return Pending("reduce_scatter", work, lambda: mine)


def exchanged(value: Tensor, there: Exchange, back: Exchange) -> Tensor:
    """*there* of *value*, whose gradient goes *back*."""
    made: Tensor = _Exchanged.apply(value, there, back)  # type: ignore[no-untyped-call]
    return made


class _Exchanged(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, value: Tensor, there: Exchange, back: Exchange) -> Tensor:
        ctx.back = back
        return there(value)

    @staticmethod
    def backward(ctx: Any, *made: Tensor) -> tuple[Tensor, None, None]:
        return ctx.back(made[0]), None, None
