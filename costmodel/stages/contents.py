"""`Contents`: what a stage's blocks are together, before data parallelism.

Candidates that differ in ZeRO alone have the same contents: columns sum them once.

What stages hold, side by side: how many of which atoms, as columns over stages.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, TypeVar

import numpy as np

from costmodel.stages.block_cost import Atom
from profiles.arrays import Array
from profiles.hardware import Precision

_WORKING = "working_bytes"
Part = tuple[Any, Atom]  # how many of a block (a number or an array), and its price


@dataclass(frozen=True, slots=True, kw_only=True)
class Contents:
    """Blocks of a stage: `total` is their sum, but of working bytes the largest.

    `layers` counts those that run; `away_bytes`, `weight_bytes`, `parameters` and
    `trained_parameters` are those of the block that has most. `leaving_bytes` are the
    most of a layer whose saved tensors are all there, before they leave or when they
    are back, with its working set. `fully_shard` takes experts apart from their layer:
    `unit_parameters` is the most of either, `sending_bytes` what a backward needs
    beside the largest working set where it waits for its gradients to be sent, as made
    and as sent. `pair_bytes` are the weights that are there while a pass goes from one
    to the next, `segment_bytes` those of the largest segment, which all stay until its
    backward is through, `root_bytes` those of a table that is the head too, which stay
    between its two passes. `early_parameters` are of blocks without products (the
    table), whose gradients come with those of inputs where backward is split. Arrays,
    or numbers.
    """

    total: Atom
    layers: Array
    away_bytes: Array
    leaving_bytes: Array
    weight_bytes: Array
    parameters: Array
    trained_parameters: Array
    unit_parameters: Array
    sending_bytes: Array
    pair_bytes: Array
    segment_bytes: Array
    root_bytes: Array
    early_parameters: Array

    def take(self, index: Array) -> Contents:
        """The stages at *index*, for every field."""
        others = {
            item.name: getattr(self, item.name)[index]
            for item in fields(self)
            if item.name != "total"
        }
        return Contents(total=self.total.take(index), **others)


def contents_of(
    parts: Sequence[Part],
    precision: Precision,
    segments: Sequence[Sequence[Part]] = (),
) -> Contents:
    """The sum of *parts*; of them *segments* are made again together."""
    names = [item.name for item in fields(Atom)]
    pair = _largest(parts, [_pair_bytes(price, precision) for _, price in parts])
    total = {name: _sum(parts, name) for name in names if not name.endswith(_WORKING)}
    total["forward_working_bytes"] = _most(parts, "forward_working_bytes")
    total["backward_working_bytes"] = _redone(parts, segments)
    return Contents(
        total=Atom(**total),
        layers=np.asarray(
            sum(count * (np.asarray(price.forward_s) > 0) for count, price in parts)
        ),
        away_bytes=_most(parts, "away_bytes"),
        leaving_bytes=_largest(
            parts,
            [
                np.where(
                    np.asarray(price.away_bytes) > 0,
                    price.away_bytes + price.backward_working_bytes,
                    0.0,
                )
                for _, price in parts
            ],
        ),
        weight_bytes=_largest(
            parts,
            [
                weight_bytes(_trained(price), price.frozen_parameters, precision)
                for _, price in parts
            ],
        ),
        parameters=_most(parts, "parameters"),
        trained_parameters=_largest(parts, [_trained(price) for _, price in parts]),
        unit_parameters=_largest(
            parts,
            [
                np.maximum(price.parameters, price.expert_parameters)
                for _, price in parts
            ],
        ),
        sending_bytes=_sending_bytes(parts, precision, total["saved_bytes"]),
        pair_bytes=pair,
        segment_bytes=_segment_bytes(segments, precision, np.zeros_like(pair)),
        root_bytes=_shared_bytes(parts, precision),
        early_parameters=np.asarray(
            sum(
                count * np.where(np.asarray(price.weight_s) > 0, 0, price.parameters)
                for count, price in parts
            )
        ),
    )


def weight_bytes(parameters: Array, frozen: Array, precision: Precision) -> Array:
    """Of so many trained and *frozen* parameters, as passes read them."""
    return parameters * precision.parameter.bytes + frozen * precision.frozen_bytes


def _pair_bytes(price: Atom, precision: Precision) -> Array:
    """A layer and the next one, and the experts of one."""
    layer = weight_bytes(price.parameters, price.frozen_parameters, precision)
    return 2 * layer + weight_bytes(price.expert_parameters, np.zeros(()), precision)


def _sending_bytes(
    parts: Sequence[Part], precision: Precision, saved_bytes: Array
) -> Array:
    """What the block that needs most while its gradients are sent has beside the
    largest working set: two copies, less what its backward has let go of. The table,
    whose gradients come last, is sent when nothing that was saved is left."""
    needed = []
    for _, price in parts:
        unit = np.maximum(price.parameters, price.expert_parameters)
        last = np.asarray(price.weight_s) == 0
        freed = np.where(last, saved_bytes, price.saved_bytes + price.dropped_bytes)
        more = np.maximum(2 * unit * precision.gradient_bytes - freed, 0.0)
        needed.append(price.backward_working_bytes + more)
    return _largest(parts, needed) - _most(parts, "backward_working_bytes")


def _segment_bytes(
    segments: Sequence[Sequence[Part]], precision: Precision, most: Array
) -> Array:
    """The weights of the layers of a segment: of the largest, *most* at the least."""
    for one in segments:
        trained = _sum(one, "parameters") + _sum(one, "expert_parameters")
        frozen = _sum(one, "frozen_parameters")
        most = np.maximum(most, weight_bytes(trained, frozen, precision))
    return most


def _shared_bytes(parts: Sequence[Part], precision: Precision) -> Array:
    """The weights of what a stage would hold twice, and counts −1 times."""
    found = [
        np.maximum(-np.asarray(count), 0)
        * weight_bytes(price.parameters, price.frozen_parameters, precision)
        for count, price in parts
    ]
    return np.asarray(sum(found))


def _trained(price: Atom) -> Array:
    return np.asarray(price.parameters + price.expert_parameters)


def _sum(parts: Sequence[Part], name: str) -> Array:
    return np.asarray(
        sum(np.asarray(count) * getattr(price, name) for count, price in parts)
    )


def _most(parts: Sequence[Part], name: str) -> Array:
    """The largest of any block that is there."""
    return _largest(parts, [getattr(price, name) for _, price in parts])


def _largest(parts: Sequence[Part], values: Sequence[Array]) -> Array:
    most: Array = np.zeros(())
    for (count, _), value in zip(parts, values, strict=True):
        most = np.maximum(most, np.where(np.asarray(count) > 0, value, 0))
    return most


def _redone(parts: Sequence[Part], segments: Sequence[Sequence[Part]]) -> Array:
    """The largest working set of backward: a block's, or that of all the layers of a
    segment, whose saved tensors are there at once."""
    most = _most(parts, "backward_working_bytes")
    for segment in segments:
        inside = _most(segment, "forward_working_bytes")
        most = np.maximum(most, _sum(segment, "dropped_bytes") + inside)
    return most


K = TypeVar("K", bound=Hashable)
Held = tuple[tuple[int, K], ...]  # how many of what, of one stage


def held(counts: Mapping[K, int]) -> Held[K]:
    """Counts as a tuple, in their order."""
    return tuple((count, part) for part, count in counts.items())


def at(several: Sequence[Held[K]], place: int) -> Held[K]:
    """The one at *place*, or nothing where there are fewer."""
    return several[place] if place < len(several) else ()


def side_by_side(
    stages: Sequence[Held[K]], table: Atom, rows: Mapping[K, int]
) -> list[Part]:
    """The first part of each stage, the second …; 0 of nothing where it has fewer.

    *rows* says where in *table* each part's atom is; row 0 is none.
    """
    most = max(len(parts) for parts in stages)
    counts = np.zeros((most, len(stages)), dtype=np.int64)
    index = np.zeros_like(counts)
    for column, parts in enumerate(stages):
        for place, (count, part) in enumerate(parts):
            counts[place, column] = count
            index[place, column] = rows[part]
    return [(one, table.take(row)) for one, row in zip(counts, index, strict=True)]
