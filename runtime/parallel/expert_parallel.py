"""Expert parallelism: each rank holds some of the experts, and rows travel to them.

    dispatch   how many rows for whom (all-to-all of counts), then the rows
    combine    what the experts made of them, back

Rows come sorted by source, then by expert; an expert's rows are brought together, so
that each has one product. Where nothing is dropped sizes vary from step to step (the
all-to-all dispatcher of Megatron-Core); experts of a fixed capacity get as many from
each rank, and nobody has to be told (GShard, Lepikhin et al., 2020, section 3).

Ranks may share experts, each with a part of their width (Megatron-Core's expert tensor
parallelism): what came to one goes to all of them, and the sum of what they make of it
comes back. That is an all-gather and a reduce-scatter of as many rows as the router
says, which no backend has for unlike ranks: all-to-all exchanges carry them.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh

from profiles.measure.timing import copied, sorting
from runtime.models import (
    Counts,
    Deferred,
    ExpertMlp,
    Held,
    Product,
    Stack,
    here,
    stacked,
)
from runtime.parallel.collectives import (
    Group,
    all_reduce,
    all_to_all,
    exchanged,
    start_all_gather,
    uneven_all_to_all,
)
from runtime.parallel.tensor_parallel import EXPERTS, placed

EXPERT, OUTPUT, INPUT = 0, 1, 2  # dimensions of a stack's weight; its bias has two


def split(mlp: ExpertMlp, mesh: DeviceMesh) -> None:
    """Keep this rank's share of the experts, over the axes ep and etp of *mesh*, in
    place: some of them, and of each some of its width."""
    sizes = {axis: mesh[axis].size() for axis in ("ep", "etp")}
    axes = [axis for axis, size in sizes.items() if size > 1]
    if not axes:
        return
    over = mesh[tuple(axes)]
    experts, cut = mlp.experts, sizes["etp"] > 1
    for stack, dim in ((experts.gate, OUTPUT), (experts.up, OUTPUT)):
        if stack is not None:
            _cut(stack, over, width=dim, width_of_bias=dim)
    _cut(experts.down, over, width=INPUT, width_of_bias=None)
    if cut:
        summand = SummandStack(experts.down, mesh["etp"].get_group())
        experts.down = summand  # type: ignore[assignment]
    experts.held //= sizes["ep"]
    groups = {axis: mesh[axis].get_group() for axis in axes}
    mlp.exchange = Dispatcher(groups.get("ep"), groups.get("etp"))


def _cut(
    stack: Stack, mesh: DeviceMesh, *, width: int, width_of_bias: int | None
) -> None:
    """Place a stack over *mesh*: experts over ep, over etp the dimension *width*."""

    def dims(of_width: int | None) -> list[int | None]:
        named = {"ep": EXPERT, "etp": of_width}
        return [named[axis] for axis in mesh.mesh_dim_names or ()]

    stack.weight = placed(stack.weight, mesh, *dims(width))
    if stack.bias is not None:
        stack.bias = placed(stack.bias, mesh, *dims(width_of_bias))


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


class SummandStack(nn.Module):
    """The last products of experts whose width is cut: a rank's summand of each.

    The bias is in the first rank's alone; all have its gradient, which is of the sum.
    """

    def __init__(self, stack: Stack, group: Group) -> None:
        super().__init__()
        self.weight, self.bias = stack.weight, stack.bias
        self.group = group
        self.later: Deferred | None = None
        self.product: Product = stack.product

    def forward(self, rows: Tensor, counts: Counts) -> Tensor:
        """As `Stack`."""
        bias: Tensor | None = self.bias
        if bias is not None:
            adds = self.group.rank() == 0
            bias = exchanged(
                here(bias),
                lambda one: one.view_as(one) if adds else torch.zeros_like(one),
                lambda made: made,
            )
        return stacked(rows, counts, here(self.weight), bias, self.later, self.product)


class Dispatcher:
    """Carries rows to the ranks of *group* that hold their experts and to the *sharers*
    of those, and back. None is a rank that has all experts, or their whole width."""

    def __init__(self, group: Group | None, sharers: Group | None) -> None:
        self.group, self.sharers = group, sharers

    def __call__(self, rows: Tensor, counts: Tensor | None, experts: Held) -> Tensor:
        if counts is None:
            return self._evenly(rows, experts)
        outward = counts.view(_size(self.group), -1)  # by rank, and expert of that rank
        inward = outward if self.group is None else all_to_all(outward, self.group)
        # The host waits for the device here, once, and for what sharers have.
        sent, came = torch.stack((outward.sum(1), inward.sum(1))).tolist()
        every, shared = inward, [sum(came)]
        if self.sharers is not None:
            every = start_all_gather(inward, self.sharers, dim=0).wait()
            shared = every.view(_size(self.sharers), -1).sum(1).tolist()
        arrived = _shown(_carried(rows, came, sent, self.group), shared, self.sharers)
        held = torch.arange(every.shape[1], device=rows.device).repeat(len(every))
        owners = held.repeat_interleave(every.flatten(), output_size=len(arrived))
        order, places = sorting(owners)
        made = experts(copied(arrived, order, places), Counts(every.sum(0)))
        by_source = _summed(copied(made, places, order), shared, self.sharers)
        return _carried(by_source, sent, came, self.group)

    def _evenly(self, rows: Tensor, experts: Held) -> Tensor:
        ranks, sharers = _size(self.group), _size(self.sharers)
        sources, held = ranks * sharers, experts.held
        sizes, shared = [len(rows) // ranks] * ranks, [len(rows)] * sharers
        arrived = _shown(_carried(rows, sizes, sizes, self.group), shared, self.sharers)
        by_expert = arrived.unflatten(0, (sources, held, -1)).transpose(0, 1)
        each = Counts.evenly(len(arrived) // held, held, rows.device)
        made = experts(by_expert.flatten(0, 2), each)
        by_source = made.unflatten(0, (held, sources, -1)).transpose(0, 1)
        own = _summed(by_source.flatten(0, 2), shared, self.sharers)
        return _carried(own, sizes, sizes, self.group)


def _size(group: Group | None) -> int:
    return 1 if group is None else group.size()


def _carried(
    rows: Tensor, came: list[int], sent: list[int], group: Group | None
) -> Tensor:
    if group is None:
        return rows
    return exchanged(
        rows,
        lambda rows: uneven_all_to_all(rows, came, sent, group),
        lambda made: uneven_all_to_all(made, sent, came, group),
    )


def _shown(rows: Tensor, counts: list[int], group: Group | None) -> Tensor:
    """The rows of all ranks of *group*, of whom rank i has `counts[i]`; their gradients
    are summands."""
    if group is None:
        return rows
    return exchanged(
        rows,
        lambda rows: _to_all(rows, counts, group),
        lambda made: _sum_of_own(made, counts, group),
    )


def _summed(summands: Tensor, counts: list[int], group: Group | None) -> Tensor:
    """Of the rows of all ranks the sum of this one's, whose gradient all need."""
    if group is None:
        return summands
    return exchanged(
        summands,
        lambda rows: _sum_of_own(rows, counts, group),
        lambda made: _to_all(made, counts, group),
    )


def _to_all(rows: Tensor, counts: list[int], group: Group) -> Tensor:
    ranks = group.size()
    return uneven_all_to_all(rows.repeat(ranks, 1), counts, [len(rows)] * ranks, group)


def _sum_of_own(summands: Tensor, counts: list[int], group: Group) -> Tensor:
    own = counts[group.rank()]
    came = uneven_all_to_all(summands, [own] * group.size(), counts, group)
    return came.view(group.size(), own, -1).sum(0)


def _summed_over(groups: list[Group]) -> Callable[[Tensor], Tensor]:
    def summed(counts: Tensor) -> Tensor:
        for group in groups:
            counts = all_reduce(counts, group)
        return counts

    return summed
