"""What a layer may make again: the sets of operators that are worth considering.

    operators run again  → tensors that need not be kept, and what cannot be read then
    a set is closed      when each input is kept, made again, or the layer's own input
    a menu               the closed sets, and the presets, of which none is better in
                         seconds and in bytes
    joined               neighbours made again together, from one kept input (rotor's
                         checkpoint, as far as a layout can say it: `segments`)

The cheap-op rule of Yuan et al. (ATC 2024, section 3.1) is what comes out of it for a
gated decoder: norms and the activation function free the most bytes a second.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Set
from dataclasses import dataclass, replace
from math import isqrt
from typing import Any, Final

import numpy as np

from costmodel.layout import (
    CORE,
    NOTHING,
    PRESETS,
    Offload,
    Retention,
    inner,
    offloaded,
    preset,
    recompute,
)
from costmodel.machine import LaunchFloor
from costmodel.operators import OperatorPrice, Packer, Work
from costmodel.stages import Whole, kept_bytes, packed_in, run_again
from costmodel.support import SEGMENTS, treatment
from profiles.arrays import Array
from profiles.models import Block, Kind, Operator

MOST_FREE: Final = 10  # operators of which all subsets are looked at


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Option:
    """One layer's retention, and its price for one micro-batch; equal to itself alone.

    `saved_bytes` stay from forward to backward, `working_bytes` live inside the
    backward pass, what is made again among them. Of `joined` neighbours one has all of
    that; the others have the retention `inside`, run again in `inside_s`, keep nothing
    and add `inside_bytes` to what lives inside the backward pass.
    """

    retention: Retention
    recompute_s: float
    saved_bytes: float
    working_bytes: float
    joined: int = 1
    inside: Retention | None = None
    inside_s: float = 0.0
    inside_bytes: float = 0.0

    def runs(self, layers: int) -> int:
        """How many of so many neighbours keep what one keeps."""
        return -(-layers // self.joined)

    def seconds(self, layers: int) -> float:
        """Of so many neighbours with this option."""
        first = self.runs(layers)
        return first * self.recompute_s + (layers - first) * self.inside_s

    def held_bytes(self, layers: int) -> float:
        """What so many neighbours keep from forward to backward."""
        return self.runs(layers) * self.saved_bytes

    def needs_bytes(self, layers: int) -> float:
        """The working set of the backward of so many neighbours."""
        more = min(self.joined, layers) - 1
        return self.working_bytes + more * self.inside_bytes if layers else 0.0


def menu(
    block: Block,
    prices: dict[str, OperatorPrice],
    entry_bytes: Any,
    packer: Packer,
    *,
    offload: Offload = NOTHING,
    words: Set[str] | None = None,
    neighbours: int = 1,
    gathered_bytes: float = 0.0,
) -> tuple[Option, ...]:
    """Options for a layer, the fastest first; the first keeps everything.

    *words* are the treatments (`costmodel.support.features.treatment`) that are
    allowed, all of them if None. An option that another one beats in seconds and in
    bytes kept is left out. Of so many *neighbours* alike, some may be joined: those
    come last, and hold *gathered_bytes* of weights each while they are made again.
    """
    found: dict[frozenset[str], Retention] = {}
    for name in PRESETS:
        one = preset(name, block)
        found[one.recomputed] = one
    for names in _closed_sets(block, prices, packer.machine.framework.host.floor):
        one = recompute(*names)
        found.setdefault(one.recomputed, one)
    layer = _Layer.of(block, prices, entry_bytes, packer)
    options = [
        layer.option(offloaded(one, block, offload))
        for one in found.values()
        if words is None or treatment(one) in words
    ]
    alone = _undominated(options)
    if words is not None and SEGMENTS not in words:
        return alone
    full = offloaded(preset("full", block), block, offload)
    return (*alone, *layer.joined(full, neighbours, gathered_bytes))


def lengths(neighbours: int) -> list[int]:
    """How many of so many *neighbours* to join: the shortest runs that leave as many
    inputs kept, and all up to √n.

    >>> lengths(10)
    [2, 3, 4, 5, 10]
    """
    whole = {-(-neighbours // runs) for runs in range(1, neighbours)}
    return sorted(whole.union(range(2, min(isqrt(neighbours) + 2, neighbours + 1))))


def remade(operator: Operator) -> frozenset[str]:
    """The names of what *operator* makes and somebody may keep."""
    names = {item.name for item in operator.saves if item.internal}
    if operator.kind is Kind.ATTENTION:
        names.add(CORE)
    return frozenset({operator.output.name, *names})


def _closed_sets(
    block: Block, prices: dict[str, OperatorPrice], floor: LaunchFloor
) -> Iterator[frozenset[str]]:
    """Names to drop, of the closed sets of operators that nothing dominates."""
    operators = block.operators
    freed = np.array([_freed(one, prices) for one in operators])
    forward = [prices[one.name].forward for one in operators]
    device = np.array([_number(one.device_s) for one in forward])
    host = np.array([_number(one.host_s) for one in forward])
    awaited = np.array([_number(one.awaited_s) for one in forward])
    again = _subsets(block, freed, device + host)
    seconds = floor.seconds(again @ device, again @ host, again @ awaited)
    for row in _front(seconds, -(again @ freed)):
        picked = [one for one, run in zip(operators, again[row], strict=True) if run]
        if picked:
            yield frozenset[str]().union(*(remade(one) for one in picked))


def _subsets(block: Block, freed: Array, seconds: Array) -> Array:
    """Closed sets of operators, one a row: all subsets of those that free the most
    bytes a second, closed."""
    freeing = np.flatnonzero(freed > 0)
    best = np.argsort(-freed[freeing] / seconds[freeing], kind="stable")
    free = freeing[best][:MOST_FREE]
    rows = np.arange(2 ** len(free))[:, None] >> np.arange(len(free)) & 1
    again = np.zeros((len(rows), len(freed)), dtype=bool)
    again[:, free] = rows
    kept = {item.name for one in block.operators for item in one.saves}
    makers = {one.output.name: place for place, one in enumerate(block.operators)}
    for place in reversed(range(len(freed))):
        for item in block.operators[place].inputs:
            if item.name in makers and item.name not in kept:
                again[:, makers[item.name]] |= again[:, place]
    return np.unique(again, axis=0)


def _freed(operator: Operator, prices: dict[str, OperatorPrice]) -> float:
    """Bytes that need not be kept if *operator* runs again."""
    names = remade(operator)
    copies = {f"{operator.output.name}_{part}" for part in ("copies", "gate")}
    sizes: dict[str, Any] = {}
    for price in prices.values():
        sizes |= price.saved | price.internal
    return sum(_number(size) for name, size in sizes.items() if name in names | copies)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Layer:
    """A layer's prices as numbers, which `atom` has as arrays: a menu has hundreds of
    options, and asks for three numbers of each."""

    block: Block
    device_s: dict[str, float]  # of forwards
    host_s: dict[str, float]
    awaited_s: dict[str, float]
    tensors: dict[str, float]
    widest_bytes: float
    entry_bytes: float
    prices: Mapping[str, OperatorPrice]
    packer: Packer

    @classmethod
    def of(
        cls,
        block: Block,
        prices: dict[str, OperatorPrice],
        entry_bytes: Any,
        packer: Packer,
    ) -> _Layer:
        whole = Whole.of(prices)
        forward = {name: price.forward for name, price in prices.items()}
        return cls(
            block=block,
            device_s={name: _number(one.device_s) for name, one in forward.items()},
            host_s={name: _number(one.host_s) for name, one in forward.items()},
            awaited_s={name: _number(one.awaited_s) for name, one in forward.items()},
            tensors={name: _number(size) for name, size in whole.tensors.items()},
            widest_bytes=_number(whole.widest_bytes),
            entry_bytes=_number(entry_bytes),
            prices=prices,
            packer=packer,
        )

    def option(self, retention: Retention) -> Option:
        framework = self.packer.machine.framework
        early = framework.stops_early
        again = run_again(self.block, retention, stops_early=early).items()
        saved, _, dropped = kept_bytes(
            self.block, self.tensors, retention, self.entry_bytes
        )
        repeated = Work(
            compute_s=np.asarray(
                sum(self.device_s[name] * part for name, part in again)
            ),
            host_s=sum(self.host_s[name] * part for name, part in again),
            awaited_s=sum(self.awaited_s[name] * part for name, part in again),
        )
        unpacked = 0.0
        if retention.compresses:
            packed = packed_in(
                self.block,
                self.prices,
                retention,
                np.asarray(self.entry_bytes),
                self.packer,
            )
            saved = saved - packed.saved_bytes
            repeated = repeated + packed.each_way * 2
            unpacked = _number(packed.largest_bytes)
        return Option(
            retention=retention,
            recompute_s=_number(repeated.total_s(framework.host.floor)),
            saved_bytes=_number(saved),
            working_bytes=self.widest_bytes + _number(dropped) + unpacked,
        )

    def joined(
        self, full: Retention, neighbours: int, gathered_bytes: float
    ) -> Iterator[Option]:
        """Runs of layers made again together, the first of each by *full*."""
        if self.block.entry is None or neighbours < 2:
            return
        first, rest = self.option(full), inner(self.block)
        after = self.option(rest)
        for layers in lengths(neighbours):
            yield replace(
                first,
                joined=layers,
                inside=rest,
                inside_s=after.recompute_s,
                inside_bytes=after.working_bytes - self.widest_bytes + gathered_bytes,
            )


def _undominated(options: list[Option]) -> tuple[Option, ...]:
    seconds = np.array([one.recompute_s for one in options])
    held = np.array([one.saved_bytes for one in options])
    return tuple(options[row] for row in _front(seconds, held))


def _front(seconds: Array, held: Array) -> Array:
    """Rows that no other row beats in both, the fastest first."""
    order = np.lexsort((held, seconds))
    least = np.minimum.accumulate(held[order])
    return np.asarray(order[np.flatnonzero(np.diff(least, prepend=np.inf) < 0)])


def _number(value: Any) -> float:
    return float(np.asarray(value).reshape(-1)[0])
