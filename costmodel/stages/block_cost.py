"""Atoms: the price of a distinct block, by degrees and retention (contract 3).

A question has some hundreds of them. Candidates gather them by index (`AtomBook`); a
finished layout looks its own up. Either way the numbers come from here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np

from costmodel.layout import CORE, EVERYTHING, Retention
from costmodel.machine import ASSUMED, LaunchFloor, Machine
from costmodel.operators import (
    Degrees,
    OperatorPrice,
    Packed,
    Packer,
    Work,
    apart_s,
    core_of,
    operator_price,
    require_packable,
    waited_s,
)
from profiles.arrays import Array
from profiles.hardware import Precision
from profiles.models import PRODUCTS, Block, Kind

_ZERO = np.zeros(())


# Of one micro-batch through one block on one rank.
ATOM: Final = (
    # seconds of the forward, of what is recomputed before the backward, and of the
    # backward; what of the backward makes the gradients of weights
    *("forward_s", "recompute_s", "backward_s", "weight_s"),
    # what of each is communication
    *("forward_tensor_s", "recompute_tensor_s", "backward_tensor_s"),
    *("forward_context_s", "recompute_context_s", "backward_context_s"),
    *("forward_expert_s", "recompute_expert_s", "backward_expert_s"),
    # trained ones but for experts', trained ones of experts, and frozen ones
    *("parameters", "expert_parameters", "frozen_parameters"),
    "summands",  # trained parameters of whose gradient each tp rank has a summand
    "dummy_bytes",  # kept for gradients that are added up already
    "tied_parameters",  # whose gradient the pipeline's two ends sum
    "reused_parameters",  # of layers that share theirs, once for each but the first
    "saved_bytes",  # from forward to backward
    "away_bytes",  # offloaded between them
    "dropped_bytes",  # recomputed before the backward
    # of what gradients of weights are made: inputs of products, and gradients of their
    # outputs
    "weight_bytes",
    *("forward_working_bytes", "backward_working_bytes"),  # live inside a pass
    *("flops", "recompute_flops"),  # of both passes, without what is recomputed
)
_ROW: Final = {name: row for row, name in enumerate(ATOM)}


@dataclass(frozen=True, slots=True, eq=False)
class Atom:
    """What one or many blocks cost: *table* has a row for each of `ATOM`, which is read
    as an attribute."""

    table: Array

    def __getattr__(self, name: str) -> Array:
        if name not in _ROW:
            raise AttributeError(name)
        found: Array = self.table[_ROW[name]]
        return found

    def __getitem__(self, index: Any) -> Atom:
        return Atom(self.table[:, index])

    @classmethod
    def of(cls, shape: tuple[int, ...], **values: Array) -> Atom:
        """Of these *values*; of all others 0."""
        return cls(np.zeros((len(ATOM), *shape))).replaced(**values)

    def replaced(self, **values: Array) -> Atom:
        """The same but for these *values*."""
        table = self.table.copy()
        for name, value in values.items():
            table[_ROW[name]] = value
        return Atom(table)

    @property
    def trained(self) -> Array:
        """Parameters that are trained."""
        return np.asarray(self.parameters + self.expert_parameters)


def block_prices(
    block: Block, degrees: Degrees, precision: Precision, machine: Machine
) -> dict[str, OperatorPrice]:
    """Every operator of *block*, priced once for all retentions."""
    if degrees.modules:
        from costmodel.operators import explicit_prices

        return explicit_prices(block, degrees, precision, machine)

    def priced(on: Machine) -> dict[str, OperatorPrice]:
        return {
            item.name: operator_price(item, block, degrees, precision, on)
            for item in block.operators
        }

    prices = priced(machine)
    if not machine.knows_gaps:
        return prices
    apart = apart_s(block, degrees, precision, prices)
    return priced(machine.sending(apart)) if np.isfinite(apart).any() else prices


@dataclass(frozen=True, slots=True, kw_only=True)
class Whole:
    """What of a block is the same whatever it keeps: both passes over all operators,
    the bytes of tensors that backward needs, and the widest operator's."""

    forward: Work
    backward: Work
    tensors: dict[str, Array]
    widest_bytes: Array
    waited_s: Array  # of the forward

    @classmethod
    def of(cls, prices: dict[str, OperatorPrice]) -> Whole:
        """The sum of *prices*."""
        tensors: dict[str, Array] = {}
        for price in prices.values():
            tensors |= price.saved | price.internal
        return cls(
            forward=_sum([price.forward for price in prices.values()]),
            backward=_sum([price.backward for price in prices.values()]),
            tensors=tensors,
            widest_bytes=_most(
                [price.output_bytes + price.input_bytes for price in prices.values()]
            ),
            waited_s=waited_s(list(prices.values())),
        )


def atom(
    block: Block,
    prices: dict[str, OperatorPrice],
    retention: Retention,
    entry_bytes: Array,
    *,
    whole: Whole | None = None,
    stops_early: bool = False,
    floor: LaunchFloor = ASSUMED,
    packer: Packer | None = None,
) -> Atom:
    """Assemble a block's operators under *retention*.

    *entry_bytes* is the size of the block's input: what is kept when all is
    recomputed, with *stops_early* only as far as needed (`recomputed_operators`).
    *floor* is what a host needs to issue what the device does; *packer* says what
    compression costs, where *retention* compresses. Who assembles several gives the
    *whole* of *prices*, made once.
    """
    found = whole or Whole.of(prices)
    forward, backward, widest = found.forward, found.backward, found.widest_bytes
    again = run_again(block, retention, stops_early=stops_early)
    repeated = _sum([prices[name].forward * share for name, share in again.items()])
    saved, away, dropped = kept_bytes(block, found.tensors, retention, entry_bytes)
    if retention.compresses:
        assert packer is not None, "who compresses says on what machine"
        packed = packed_in(block, prices, retention, entry_bytes, packer)
        saved = saved - packed.saved_bytes
        forward, backward = forward + packed.each_way, backward + packed.each_way
        unpacked = packed.largest_bytes
    else:
        unpacked = _ZERO
    shape = np.broadcast_shapes(forward.device_s.shape, np.shape(entry_bytes))
    return Atom.of(
        shape,
        **_waiting(_seconds(forward, repeated, backward, floor), found, prices, again),
        **parameter_sums(prices),
        saved_bytes=saved,
        away_bytes=away,
        dropped_bytes=dropped,
        weight_bytes=_of_weights(block, prices),
        forward_working_bytes=widest,
        backward_working_bytes=widest + dropped + unpacked,
        flops=forward.flops + backward.flops,
        recompute_flops=repeated.flops,
    )


def _seconds(
    forward: Work, repeated: Work, backward: Work, floor: LaunchFloor
) -> dict[str, Array]:
    """An atom's seconds by name, and what of each pass is communication."""
    passes = {"forward": forward, "recompute": repeated, "backward": backward}
    found = {f"{name}_s": work.total_s(floor) for name, work in passes.items()}
    for kind in ("tensor", "context", "expert"):
        for name, work in passes.items():
            found[f"{name}_{kind}_s"] = getattr(work, f"{kind}_comm_s")
    share = backward.weight_s / np.where(backward.device_s > 0, backward.device_s, 1.0)
    share = np.where(backward.device_s > 0, share, 0.0)
    return {**found, "weight_s": found["backward_s"] * share}


def _waiting(
    seconds: dict[str, Array],
    found: Whole,
    prices: dict[str, OperatorPrice],
    again: dict[str, float],
) -> dict[str, Array]:
    """*seconds*, with what the device waits for its host forward, and again where the
    host does."""
    more = {"forward_s": found.waited_s}
    if any(np.any(prices[name].waits) for name in again):
        more["recompute_s"] = found.waited_s
    return {**seconds, **{name: seconds[name] + more[name] for name in more}}


def parameter_sums(prices: dict[str, OperatorPrice]) -> dict[str, Array]:
    """An atom's parameters, and what stands for their gradients, by name; who ties
    blocks says what the ends sum."""
    held = ("expert_parameters", "parameters", "frozen_parameters")
    names = (*held, "summands", "dummy_bytes")
    return {
        name: sum((getattr(one, name) for one in prices.values()), start=_ZERO)
        for name in names
    }


def _of_weights(block: Block, prices: dict[str, OperatorPrice]) -> Array:
    """What gradients of weights are made of: 32·s·b·h bytes of a GPT layer, as Qi et
    al. (ICLR 2024), table 1."""
    tensors: dict[tuple[str, bool], Array] = {}
    for item in block.operators:
        if item.kind in PRODUCTS and not item.frozen:
            price = prices[item.name]
            tensors[item.output.name, True] = price.gradient_bytes
            tensors |= {(name, False): size for name, size in price.saved.items()}
    return sum(tensors.values(), start=_ZERO)


def recomputed_operators(
    block: Block, wanted: frozenset[str], *, stops_early: bool = False
) -> list[str]:
    """Whose forward runs again: the makers of what is dropped.

    The whole block, or with *stops_early* up to the last maker of a tensor that
    backward needs: the last product and the residual after it make none
    (`torch.utils.checkpoint` without reentrance). Of a segment only the last layer
    stops; as it has one layer whose input is kept, that one is counted so instead.
    """
    if EVERYTHING in wanted:
        names = [item.name for item in block.operators]
        inside = block.entry is not None and block.entry.name in wanted
        return names[: _needed(block)] if stops_early and not inside else names
    return [
        item.name
        for item in block.operators
        if item.output.name in wanted
        or (item.kind is Kind.ATTENTION and CORE in wanted)
    ]


def _needed(block: Block) -> int:
    """How many operators, from the first, make what some backward needs."""
    kept = {item.name for one in block.operators for item in one.saves}
    return max(
        (
            number
            for number, one in enumerate(block.operators, 1)
            if one.output.name in kept or any(item.internal for item in one.saves)
        ),
        default=0,
    )


def run_again(
    block: Block, retention: Retention, *, stops_early: bool
) -> dict[str, float]:
    """The operators whose forward runs again, and how much of it does: all of it where
    the whole block does."""
    names = recomputed_operators(block, retention.recomputed, stops_early=stops_early)
    outputs = {item.name: item.output.name for item in block.operators}
    return {name: retention.share(outputs[name]) or 1.0 for name in names}


def kept_bytes(
    block: Block,
    tensors: dict[str, Any],
    retention: Retention,
    entry_bytes: Any,
) -> tuple[Any, Any, Any]:
    """(bytes kept from forward to backward, offloaded, made again inside backward) of
    *tensors* by name; numbers or arrays."""
    everything = sum(tensors.values(), start=_ZERO)
    wanted = retention.recomputed
    if EVERYTHING in wanted:
        share = retention.away(block.entry.name) if block.entry is not None else 0.0
        inside = block.entry is not None and block.entry.name in wanted
        entry = entry_bytes * (not inside)
        return (1 - share) * entry, share * entry, everything
    copies, cores = _copies_of(block, wanted), _cores_of(block)
    dropped = sum(
        (
            size * (1.0 if name in copies else retention.share(cores.get(name, name)))
            for name, size in tensors.items()
        ),
        start=_ZERO,
    )
    if not retention.tiers:
        return everything - dropped, _ZERO, dropped
    away = sum(
        (
            retention.away(cores.get(name, name)) * size
            for name, size in tensors.items()
        ),
        start=_ZERO,
    )
    return everything - dropped - away, away, dropped


def packed_in(
    block: Block,
    prices: Mapping[str, OperatorPrice],
    retention: Retention,
    entry_bytes: Array,
    packer: Packer,
) -> Packed:
    """What *packer* makes of the tensors that are kept: those that nothing is done
    with but that, or the block's input."""
    require_packable(retention, block)
    if EVERYTHING in retention.recomputed:
        entry = block.entry
        return packer.packed({entry.name: entry_bytes} if entry else {}, retention)
    sizes: dict[str, Array] = {}
    for price in prices.values():
        sizes |= price.saved
    found = packer.packed(sizes, retention)
    for price in prices.values():
        for size, whole in price.softmax.values():
            scores = replace(packer, whole_bytes=whole)
            found = found + scores.packed({CORE: size}, retention)
    return found


def _copies_of(block: Block, wanted: frozenset[str]) -> frozenset[str]:
    """What operators keep of their own making goes where their output does."""
    makers = [item.name for item in block.operators if item.output.name in wanted]
    return frozenset(f"{name}_{part}" for name in makers for part in ("copies", "gate"))


def _cores_of(block: Block) -> dict[str, str]:
    """What attention keeps of its own making, treated alike in all of its operators."""
    attends = (one for one in block.operators if one.kind is Kind.ATTENTION)
    return {core_of(one): CORE for one in attends}


def _sum(works: list[Work]) -> Work:
    total = Work()
    for work in works:
        total += work
    return total


def _most(sizes: list[Array]) -> Array:
    most: Array = _ZERO
    for size in sizes:
        most = np.maximum(most, size)
    return most
