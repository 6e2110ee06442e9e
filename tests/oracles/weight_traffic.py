"""What data parallelism sends of a stage's weights and gradients: counts and bytes.

    ZeRO-0        whole gradients, all-reduced in buckets          → reduced
    ZeRO-1 to 3   weights, gathered unit by unit                   → gathered
                  gradients, scattered unit by unit                → scattered
                  and shards summed over their replicas            → summed_across
                  and over the holders of a stage                  → summed_over_copies

The same rules as `data_parallel.exchanges`, which prices them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from math import ceil
from typing import Final

from tests.oracles.traffic import Entry, Traffic

GRADIENT_BYTES: Final = 4  # gradients are summed in fp32


@dataclass(frozen=True, slots=True, kw_only=True)
class Alike:
    """*count* parameters in *units* of `fully_shard`, the same on the *ranks* of an
    axis, of which *shards* in a row share them out; so many *copies* of the axis, where
    a stage has several holders."""

    axis: str
    ranks: int
    shards: int
    copies: int
    units: int
    count: int

    def over(self, part: str) -> str:
        """The axis of the *part* shard or replicate, where they are not one."""
        return self.axis if self.shards == self.ranks else f"{self.axis}_{part}"


def reduced(weights: Iterable[Alike], bucket_bytes: float) -> Iterator[Entry]:
    """Whole gradients, in buckets."""
    for one in weights:
        size = GRADIENT_BYTES * one.count
        if one.ranks * one.copies > 1:
            buckets = max(1, ceil(size / bucket_bytes))
            yield (one.axis, "all_reduce"), Traffic(buckets, size)


def gathered(weights: Iterable[Alike], weight_bytes: float) -> Iterator[Entry]:
    """Weights of *weight_bytes* each, a unit at a time."""
    for one in weights:
        if one.shards > 1:
            size = int(one.count * weight_bytes)
            yield (one.over("shard"), "all_gather"), Traffic(one.units, size)


def scattered(weights: Iterable[Alike]) -> Iterator[Entry]:
    """Gradients, a unit at a time."""
    for one in weights:
        if one.shards > 1 and one.units:
            size = GRADIENT_BYTES * one.count
            yield (one.over("shard"), "reduce_scatter"), Traffic(one.units, size)


def summed_across(weights: Iterable[Alike]) -> Iterator[Entry]:
    """Shards of gradients over the replicas of shards, where there are several."""
    for one in weights:
        if one.shards < one.ranks:
            size = GRADIENT_BYTES * one.count // one.shards
            yield (one.over("replicate"), "all_reduce"), Traffic(one.units, size)


def summed_over_copies(weights: Iterable[Alike]) -> Iterator[Entry]:
    """Shards of gradients over the holders of a stage, where it has several."""
    for one in weights:
        if one.copies > 1:
            size = GRADIENT_BYTES * one.count // one.shards
            yield ("copies", "all_reduce"), Traffic(one.units, size)
