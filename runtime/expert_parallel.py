"""Expert parallelism: each rank holds some of the experts, and rows travel to them.

    dispatch   how many rows for whom (all-to-all of counts), then the rows
    combine    what the experts made of them, back

Rows come sorted by source, then by expert; an expert's rows are brought together, so
that each has one product. Where nothing is dropped sizes vary from step to step (the
all-to-all dispatcher of Megatron-Core); experts of a fixed capacity get as many from
each rank, and nobody has to be told (GShard, Lepikhin et al., 2020, section 3).
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

import torch
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh

from profiles.measure.routing import copied, sorting
from runtime.collectives import Group, all_reduce, all_to_all, uneven_all_to_all
from runtime.modules.experts import ExpertMlp, Experts, Stack
from runtime.tensor_parallel import EXPERTS, placed


def split(mlp: ExpertMlp, mesh: DeviceMesh) -> None:
    """Keep this rank's share of the experts, over the ep axis *mesh*, in place."""
    if mesh.size() == 1:
        return
    for stack in mlp.experts.children():
        if isinstance(stack, Stack):
            stack.weight = placed(stack.weight, mesh, 0)
            if stack.bias is not None:
                stack.bias = placed(stack.bias, mesh, 0)
    mlp.experts.held //= mesh.size()
    mlp.exchange = Dispatcher(mesh.get_group())


def balanced(
    mlp: ExpertMlp, *, context: Group | None, tensor: Group | None, scale: float
) -> None:
    """Balance sequences that ranks share: *context* ranks, whose gradients are
    averaged, and *tensor* ranks, whose are added up.

    *scale* is what the loss of one micro-batch counts for in the step's.
    """
    balance, groups = mlp.balance, [one for one in (context, tensor) if one is not None]
    balance.scale = scale
    balance.parts = prod(group.size() for group in groups)
    balance.mean_over = 1 if context is None else context.size()
    balance.sharing = _summed_over(groups) if groups else None


def of_experts(name: str) -> bool:
    """Whether the parameter called *name* is of experts, whose ranks are their own."""
    return EXPERTS in name


class Dispatcher:
    """Carries rows to the ranks of *group* that hold their experts, and back."""

    def __init__(self, group: Group) -> None:
        self.group = group

    def __call__(self, rows: Tensor, counts: Tensor | None, experts: Experts) -> Tensor:
        if counts is None:
            return self._evenly(rows, experts)
        ranks = self.group.size()
        outward = counts.view(ranks, -1)  # by rank, and expert of that rank
        inward = all_to_all(outward, self.group)
        sent, came = outward.sum(1).tolist(), inward.sum(1).tolist()
        arrived = _carried(rows, came, sent, self.group)
        held = torch.arange(inward.shape[1], device=rows.device).repeat(ranks)
        order, places = sorting(held.repeat_interleave(inward.flatten()))
        made = experts(copied(arrived, order, places), inward.sum(0).tolist())
        by_source = made.index_select(0, places)
        return _carried(by_source, sent, came, self.group)

    def _evenly(self, rows: Tensor, experts: Experts) -> Tensor:
        ranks, held = self.group.size(), experts.held
        sizes, each = [len(rows) // ranks] * ranks, len(rows) // held
        arrived = _carried(rows, sizes, sizes, self.group)
        by_expert = arrived.unflatten(0, (ranks, held, -1)).transpose(0, 1)
        made = experts(by_expert.flatten(0, 2), [each] * held)
        by_source = made.unflatten(0, (held, ranks, -1)).transpose(0, 1)
        return _carried(by_source.flatten(0, 2), sizes, sizes, self.group)


def _carried(rows: Tensor, came: list[int], sent: list[int], group: Group) -> Tensor:
    carried: Tensor = _Carried.apply(rows, came, sent, group)  # type: ignore[no-untyped-call]
    return carried


class _Carried(torch.autograd.Function):
    """An all-to-all of rows; their gradients go the way back."""

    @staticmethod
    def forward(
        ctx: Any, rows: Tensor, came: list[int], sent: list[int], group: Group
    ) -> Tensor:
        ctx.came, ctx.sent, ctx.group = came, sent, group
        return uneven_all_to_all(rows, came, sent, group)

    @staticmethod
    def backward(ctx: Any, *made: Tensor) -> tuple[Tensor | None, ...]:
        back = uneven_all_to_all(made[0], ctx.sent, ctx.came, ctx.group)
        return back, None, None, None


def _summed_over(groups: list[Group]) -> Callable[[Tensor], Tensor]:
    def summed(counts: Tensor) -> Tensor:
        for group in groups:
            counts = all_reduce(counts, group)
        return counts

    return summed
