"""ZeRO++ under `fully_shard`: what it gathers and scatters, in blocks of integers.

quantized_weights      forward's gather carries INT8 and a scale a block; backward
                       gathers weights as they are, or what forward made of them
                       where there is a second copy                       → BlockGather
hpz_partition_size     `fully_shard` keeps, after forward, shards over so many
                       neighbours, from which backward gathers (`reshard_after_forward`)
quantized_gradients    INT4 between ranks of a node, whose sums travel as INT4 between
                       nodes, a node's ranks fewer                       → BlockScatter

After Wang et al., 2023, arXiv 2306.10209. Each block is rounded to the nearest of its
own scale: an element is off by half of it at most, a sum by that of each summand and of
each node's sum.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule

from costmodel.layout import ZeroPlus
from runtime.parallel.collectives import Group, all_to_all, gathered
from runtime.parallel.mesh import own_group

# `fully_shard` joins a layer's tensors, norms beside matrices: blocks of the 4,096 that
# are priced, as DeepSpeed has them of single tensors, would make one scale of both.
BLOCK: Final = 256
WEIGHT_BITS: Final = 8
GRADIENT_BITS: Final = 4
_SMALLEST: Final = torch.finfo(torch.float32).tiny


@dataclass(frozen=True, slots=True)
class Blocks:
    """Rows of numbers as integers, `BLOCK` of a row with a scale in common."""

    codes: Tensor  # (rows, bytes)
    scales: Tensor  # (rows, blocks)
    bits: int

    def back(self, columns: int) -> Tensor:
        """The numbers, in fp32: the first *columns* of each row."""
        codes = self.codes.view(torch.int8)
        if self.bits == GRADIENT_BITS:
            low, high = codes << 4 >> 4, codes >> 4
            codes = torch.stack((low, high), -1).flatten(1)
        values = codes.unflatten(1, (self.scales.shape[1], -1)).float()
        whole: Tensor = (values * self.scales.unsqueeze(-1)).flatten(1)
        return whole[:, :columns]


def blocks(rows: Tensor, bits: int) -> Blocks:
    """*rows* of numbers in *bits*, 8 or 4; a last block is filled up with zeros."""
    count, columns = rows.shape
    length = min(BLOCK, columns + columns % 2)
    values = torch.nn.functional.pad(rows.float(), (0, -columns % length))
    values = values.view(count, -1, length)
    highest = 2 ** (bits - 1) - 1
    scales = (values.abs().amax(-1) / highest).clamp_(min=_SMALLEST)
    codes = (values / scales.unsqueeze(-1)).round_().to(torch.int8).flatten(1)
    if bits == GRADIENT_BITS:
        codes = codes[:, 0::2] & 0x0F | codes[:, 1::2] << 4
    return Blocks(codes.view(torch.uint8), scales, bits)


class _Allocated:
    """Buffers as `fully_shard` asks for them, and what has travelled."""

    def __init__(self) -> None:
        self.sent_bytes = 0  # by this rank, to others

    def allocate(
        self, size: Sequence[int], *, dtype: torch.dtype, device: torch.device
    ) -> Tensor:
        return torch.empty(*size, dtype=dtype, device=device)


class BlockGather(_Allocated):
    """Gathers shards as INT8 in forwards, as they are in backwards."""

    in_backward = False

    def __call__(
        self,
        output_tensor: Tensor,
        input_tensor: Tensor,
        group: Group,
        async_op: bool = False,
    ) -> Any:
        others = group.size() - 1
        if self.in_backward:
            self.sent_bytes += others * input_tensor.nbytes
            return gathered(output_tensor, input_tensor, group, async_op=async_op)
        own = blocks(input_tensor.view(1, -1), WEIGHT_BITS)
        codes, scales = (
            one.new_empty(group.size(), one.shape[1]) for one in (own.codes, own.scales)
        )
        for every, one in ((codes, own.codes), (scales, own.scales)):
            self.sent_bytes += others * one.nbytes
            gathered(every, one, group, async_op=False)
        whole = Blocks(codes, scales, WEIGHT_BITS).back(input_tensor.numel())
        output_tensor.view(whole.shape).copy_(whole)
        return None


class BlockScatter(_Allocated):
    """Sums gradients over *near* ranks, then over *far* ones, each in INT4; where all
    are near, as they are."""

    def __init__(self, near: Group, far: Group) -> None:
        super().__init__()
        self.near, self.far = near, far
        self.between_bytes = 0  # of `sent_bytes`, to ranks that are far

    def __call__(
        self,
        output_tensor: Tensor,
        input_tensor: Tensor,
        group: Group,
        op: Any,
        async_op: bool = False,
    ) -> None:
        nodes, ranks = self.far.size(), self.near.size()
        # Rank r of node k has piece k·ranks + r: those of one place on all nodes first.
        pieces = input_tensor.view(nodes, ranks, -1).transpose(0, 1).float()
        of_node = self._exchanged(pieces.flatten(1), self.near).view(nodes, -1)
        before = self.sent_bytes
        summed = self._exchanged(of_node, self.far)
        self.between_bytes += self.sent_bytes - before
        if op == dist.ReduceOp.AVG:
            summed /= group.size()
        output_tensor.copy_(summed)

    def _exchanged(self, pieces: Tensor, group: Group) -> Tensor:
        """The sum of the pieces that every rank has for this one."""
        sent = blocks(pieces, GRADIENT_BITS)
        for one in (sent.codes, sent.scales):
            self.sent_bytes += one.nbytes * (group.size() - 1) // group.size()
        codes, scales = (all_to_all(one, group) for one in (sent.codes, sent.scales))
        return Blocks(codes, scales, GRADIENT_BITS).back(pieces.shape[1]).sum(0)


@dataclass(frozen=True, slots=True, kw_only=True)
class ZeroPlusGroups:
    """What of ZeRO++ a stage has, and this rank's groups: of its node, and of those
    with its place on other nodes."""

    plus: ZeroPlus
    near: Group | None = None
    far: Group | None = None

    @classmethod
    def of(cls, plus: ZeroPlus, weights: DeviceMesh) -> ZeroPlusGroups | None:
        """Groups over the dp axis of the mesh of all ranks; every rank calls this at
        once. None where nothing is chosen."""
        if not plus.anything:
            return None
        grid = weights.mesh.transpose(1, 2).flatten(0, 1)  # (pp × tp, dp)
        near = node_of(plus, grid.shape[1], weights["tp"].size())
        if not plus.quantized_gradients or near == grid.shape[1]:
            return cls(plus=plus)
        folded = grid.view(len(grid), -1, near)
        return cls(
            plus=plus,
            near=own_group(folded.flatten(0, 1).tolist()),
            far=own_group(folded.transpose(1, 2).flatten(0, 1).tolist()),
        )

    def reshards(self) -> int | bool:
        """What `fully_shard` keeps after forward."""
        second = self.plus.hpz_partition_size
        return second if second > 1 else True

    def attach(self, unit: FSDPModule, gather: BlockGather) -> None:
        """Let *unit*, which is sharded, exchange so."""
        if self.plus.quantized_weights:
            unit.set_custom_all_gather(gather)  # type: ignore[arg-type]
        if self.near is not None and self.far is not None:
            scatter = BlockScatter(self.near, self.far)
            unit.set_custom_reduce_scatter(scatter)  # type: ignore[arg-type]


def node_of(plus: ZeroPlus, ranks: int, tp: int) -> int:
    """How many of *ranks* that share shards are near each other: those of a second
    copy, or else of this machine."""
    if plus.hpz_partition_size > 1:
        return plus.hpz_partition_size
    here = int(os.environ.get("LOCAL_WORLD_SIZE", ranks * tp)) // tp
    return here if here and ranks % here == 0 else ranks
