"""Weights that lie side by side in one parameter, each split over tp by itself.

Of queries, keys and values in one product a rank has some columns of each:

    whole      q q q q k k v v
    by rank    q q k v | q q k v

The parameter is a DTensor in the order of ranks; a checkpoint has the whole one's, of
which a rank's shard is several pieces.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    MetadataIndex,
    TensorProperties,
)
from torch.distributed.checkpoint.planner import (
    TensorWriteData,
    WriteItem,
    WriteItemType,
)
from torch.distributed.tensor import DTensor
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset


@dataclass(frozen=True, slots=True, kw_only=True)
class SideBySide:
    """Widths (*parts*) along *dim*, each split over so many *ways*."""

    dim: int
    parts: tuple[int, ...]
    ways: int

    def runs(self) -> Iterator[tuple[int, int]]:
        """(place in the whole one, length) of each piece, in the order of ranks."""
        begins = (0, *accumulate(self.parts[:-1]))
        for rank in range(self.ways):
            for begin, width in zip(begins, self.parts, strict=True):
                yield begin + rank * (width // self.ways), width // self.ways

    def by_rank(self, whole: Tensor) -> Tensor:
        """A whole parameter in the order of ranks."""
        return torch.cat(
            [whole.narrow(self.dim, *run) for run in self.runs()], self.dim
        )

    def in_order(self, by_rank: Tensor) -> Tensor:
        """And back."""
        sizes = [size for _, size in self.runs()]
        pieces = zip(self.runs(), by_rank.split(sizes, self.dim), strict=True)
        return torch.cat([one for _, one in sorted(pieces, key=_begin)], self.dim)

    def pieces(self, first: int, count: int) -> Iterator[tuple[int, int, int]]:
        """(place in the whole one, place in the piece of *count* from *first* on in the
        order of ranks, length)."""
        start = 0
        for begin, size in self.runs():
            low, high = max(start, first), min(start + size, first + count)
            if low < high:
                yield begin + low - start, low - first, high - low
            start += size


def _begin(item: tuple[tuple[int, int], Tensor]) -> int:
    return item[0][0]


class InOrder(DTensor):
    """A shard of a parameter whose parts lie side by side, to be saved and loaded in
    the whole one's order."""

    order: SideBySide

    @classmethod
    def of(cls, value: DTensor, order: SideBySide) -> InOrder:
        """Sharing storage with *value*."""
        made = cls(value._local_tensor, value._spec, requires_grad=False)
        made.order = order
        return made

    def __create_chunk_list__(self) -> list[ChunkStorageMetadata]:
        return [chunk for chunk, _ in self._chunks()]

    def __create_write_items__(self, fqn: str, _: Any) -> list[WriteItem]:
        return [
            WriteItem(
                index=MetadataIndex(fqn, chunk.offsets),
                type=WriteItemType.SHARD,
                tensor_data=TensorWriteData(
                    chunk=chunk,
                    properties=TensorProperties.create_from_tensor(self._local_tensor),
                    size=self.size(),
                ),
            )
            for chunk, _ in self._chunks()
        ]

    def __get_tensor_shard__(self, index: MetadataIndex) -> Tensor:
        return next(
            piece for chunk, piece in self._chunks() if chunk.offsets == index.offset
        )

    def _chunks(self) -> Iterator[tuple[ChunkStorageMetadata, Tensor]]:
        shape, offset = compute_local_shape_and_global_offset(
            self.shape, self.device_mesh, self.placements
        )
        dim = self.order.dim
        for begin, place, size in self.order.pieces(offset[dim], shape[dim]):
            sizes, offsets = list(shape), list(offset)
            sizes[dim], offsets[dim] = size, begin
            chunk = ChunkStorageMetadata(
                offsets=torch.Size(offsets), sizes=torch.Size(sizes)
            )
            yield chunk, self._local_tensor.narrow(dim, place, size)
