"""`Contents`: what a stage's blocks are together, before data parallelism.

Candidates that differ in ZeRO alone have the same contents: columns sum them once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from costmodel.stages.block_cost import Atom
from profiles.arrays import Array, Arrays
from profiles.hardware import Precision

Part = tuple[Array, Atom]  # how many of a block, and its price


@dataclass(frozen=True, slots=True, kw_only=True)
class Contents(Arrays):
    """Blocks of a stage: `total` is their sum, but of working bytes the largest.

    `layers` counts those that run; `away_bytes`, `weight_bytes`, `dummy_bytes` and
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
    dummy_bytes: Array
    trained_parameters: Array
    unit_parameters: Array
    sending_bytes: Array
    pair_bytes: Array
    segment_bytes: Array
    root_bytes: Array
    early_parameters: Array


def contents_of(
    parts: Sequence[Part],
    precision: Precision,
    segments: Sequence[Sequence[Part]] = (),
) -> Contents:
    """The sum of *parts*; of them *segments* are made again together."""
    parts = [one for one in parts if np.any(one[0])] or parts[:1]
    most = partial(_most, parts)

    def weights(price: Atom) -> Array:
        return weight_bytes(price.trained, price.frozen_parameters, precision)

    backward = most(lambda price: price.backward_working_bytes)
    redone, segment_bytes = backward, np.zeros_like(backward)
    for one in segments:  # whose saved tensors are there at once, and whose weights
        inside = _most(one, lambda price: price.forward_working_bytes)
        redone = np.maximum(redone, _sum(one, lambda it: it.dropped_bytes) + inside)
        held = weight_bytes(
            _sum(one, lambda it: it.parameters)
            + _sum(one, lambda it: it.expert_parameters),
            _sum(one, lambda it: it.frozen_parameters),
            precision,
        )
        segment_bytes = np.maximum(segment_bytes, held)
    total = Atom(_sum(parts, lambda price: price.table)).replaced(
        forward_working_bytes=most(lambda price: price.forward_working_bytes),
        backward_working_bytes=redone,
    )
    sending = partial(_sending_bytes, precision=precision, saved=total.saved_bytes)
    return Contents(
        total=total,
        layers=_sum(parts, lambda price: price.forward_s > 0),
        away_bytes=most(lambda price: price.away_bytes),
        leaving_bytes=most(
            lambda price: (
                (price.away_bytes > 0)
                * (price.away_bytes + price.backward_working_bytes)
            )
        ),
        weight_bytes=most(weights),
        dummy_bytes=most(lambda price: price.dummy_bytes),
        trained_parameters=most(lambda price: price.trained),
        unit_parameters=most(_unit),
        sending_bytes=most(sending) - backward,
        pair_bytes=most(partial(_pair_bytes, precision=precision)),
        segment_bytes=segment_bytes,
        root_bytes=np.asarray(
            sum(
                np.maximum(-count, 0)
                * (price.reused_parameters == 0)
                * weight_bytes(price.parameters, price.frozen_parameters, precision)
                for count, price in parts
            )
        ),
        early_parameters=_sum(
            parts, lambda price: np.where(price.weight_s > 0, 0, price.parameters)
        ),
    )


def weight_bytes(parameters: Array, frozen: Array, precision: Precision) -> Array:
    """Of so many trained and *frozen* parameters, as passes read them."""
    return parameters * precision.parameter.bytes + frozen * precision.frozen_bytes


def _pair_bytes(price: Atom, precision: Precision) -> Array:
    """A layer and the next one, and the experts of one."""
    layer = weight_bytes(price.parameters, price.frozen_parameters, precision)
    return 2 * layer + weight_bytes(price.expert_parameters, np.zeros(()), precision)


def _unit(price: Atom) -> Array:
    """Parameters of a layer's larger unit: its experts are one of their own."""
    return np.maximum(price.parameters, price.expert_parameters)


def _sending_bytes(price: Atom, precision: Precision, saved: Array) -> Array:
    """What a block needs while its gradients are sent: its working set and two copies,
    less what its backward has let go of. The table, whose gradients come last, is sent
    when nothing of all that was *saved* is left."""
    last = price.weight_s == 0
    freed = np.where(last, saved, price.saved_bytes + price.dropped_bytes)
    more = np.maximum(2 * _unit(price) * precision.gradient_bytes - freed, 0.0)
    return np.asarray(price.backward_working_bytes + more)


def _sum(parts: Sequence[Part], of: Callable[[Atom], Array]) -> Array:
    return np.asarray(sum(count * of(price) for count, price in parts))


def _most(parts: Sequence[Part], of: Callable[[Atom], Array]) -> Array:
    """The largest of any block that is there."""
    most: Array = np.zeros(())
    for count, price in parts:
        most = np.maximum(most, np.where(count > 0, of(price), 0))
    return most
