"""One pass of inference through a block on a rank: seconds, FLOPs, bytes read.

    prefill    whole prompts: attention as in a training forward (`attention_price`)
    decode     one token a sequence: products of few rows (`product`), attention over
               the cache (`core`)

Everything else is priced as in training: bytes at measured bandwidth, collectives of
the tp group by the rules of `sharding`, the host's launches.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np

from costmodel.inference import moe as experts
from costmodel.inference.decode_kernels import core, exchanged, product_s
from costmodel.inference.kv_cache import Stored, cached_elements
from costmodel.machine import LaunchFloor, Machine, Sourced, matmul_flops, traffic_s
from costmodel.operators import (
    Degrees,
    OnRank,
    Work,
    attention_work,
    elements,
    forward_collectives,
    held_experts,
    host_launches,
    operator_price,
    product_shape,
    tokens,
)
from profiles.arrays import Array
from profiles.hardware import Format
from profiles.models import Block, Kind, Operator
from profiles.samples import number_of
from profiles.units import US

_ZERO = np.zeros(())
_NOTHING = Sourced(seconds=_ZERO)
HEAD: Final = "head"


@dataclass(frozen=True, slots=True, kw_only=True)
class Pass:
    """What is the same for all blocks of a pass: how they are cut, how weights and the
    cache are stored, on what machine. `context` are the tokens that each sequence has
    (an array) where one new token of each is decoded; None: prompts are read. With
    `graphs` no host issues kernels."""

    degrees: Degrees
    stored: Stored
    cache: Format
    machine: Machine
    context: Array | None = None
    graphs: bool = False

    @property
    def last(self) -> Degrees:
        """Of the head: it sees the last token of each sequence alone."""
        return replace(self.degrees, seq_len=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class PassPrice:
    """One pass through a block: its work, and bytes of weights and cache it reads."""

    work: Work
    weight_bytes: Array
    cache_bytes: Array

    def seconds(self, floor: LaunchFloor) -> Array:
        """Of the device, over what its host needs to issue it."""
        return self.work.total_s(floor)

    def times(self, count: int) -> PassPrice:
        """So many blocks of the kind."""
        return PassPrice(
            work=self.work * count,
            weight_bytes=self.weight_bytes * count,
            cache_bytes=self.cache_bytes * count,
        )

    def __add__(self, other: PassPrice) -> PassPrice:
        return PassPrice(
            work=self.work + other.work,
            weight_bytes=self.weight_bytes + other.weight_bytes,
            cache_bytes=self.cache_bytes + other.cache_bytes,
        )


FREE: Final = PassPrice(work=Work(), weight_bytes=_ZERO, cache_bytes=_ZERO)


def block_pass(block: Block, of: Pass) -> PassPrice:
    """A pass through *block*."""
    total = FREE
    for operator in served(block):
        price = _PRICES.get(operator.kind, _elementwise)
        total = total + _issued(operator, block, of, price(operator, block, of))
    if block.name == HEAD:
        total = total + _chosen_token(block, of)
    return total


def served(block: Block) -> Iterator[Operator]:
    """The operators of *block* that inference runs: no loss."""
    return (item for item in block.operators if item.kind is not Kind.CROSS_ENTROPY)


def _degrees(block: Block, of: Pass) -> Degrees:
    return of.last if block.name == HEAD else of.degrees


def _issued(operator: Operator, block: Block, of: Pass, price: PassPrice) -> PassPrice:
    """*price* with what the host needs to issue it, and the gap after its kernels."""
    if of.graphs or not of.machine.has_host_floor:
        return price
    machine, degrees = of.machine, _degrees(block, of)
    at = OnRank(operator, block, degrees, of.stored.precision, machine)
    launches, _ = host_launches(at, degrees.tp)
    host_s = machine.framework.host.forward_s * launches
    issued = Work.of(
        Sourced(seconds=np.asarray(machine.framework.host.gap_us * US)),
        host_s=host_s,
        awaited_s=host_s * (degrees.tp > 1),
    )
    return replace(price, work=price.work + issued)


def _elementwise(operator: Operator, block: Block, of: Pass) -> PassPrice:
    """As in training: bytes at bandwidth; an embedding's sums over tp beside it."""
    degrees = _degrees(block, of)
    if "routed" in operator.output.dims:
        degrees = experts.routed_degrees(degrees)
    machine = replace(of.machine, framework=_unissued(of.machine))
    priced = operator_price(operator, block, degrees, of.stored.precision, machine)
    held = of.stored.held_bytes(operator, block, degrees)
    read = _ZERO if operator.kind is Kind.EMBEDDING else held
    return PassPrice(work=priced.forward, weight_bytes=read, cache_bytes=_ZERO)


def _unissued(machine: Machine) -> Any:
    """Its framework without a host, which `_issued` adds."""
    return machine.framework.variant(host={"forward_us": 0.0, "gap_us": 0.0})


def _matmul(operator: Operator, block: Block, of: Pass) -> PassPrice:
    degrees = _degrees(block, of)
    m, n, k = product_shape(operator, block, degrees)
    seconds = product_s(
        m,
        n,
        k,
        machine=of.machine,
        number=number_of(operator, of.stored.precision),
        weight_bytes=of.stored.each_bytes(operator),
    )
    work = Work.of(
        Sourced(seconds=seconds),
        tensor_comm=_summed(operator, block, of),
        flops=matmul_flops(m, n, k),
    )
    held = of.stored.held_bytes(operator, block, degrees)
    return PassPrice(work=work, weight_bytes=held, cache_bytes=_ZERO)


def _summed(operator: Operator, block: Block, of: Pass) -> Sourced:
    """Collectives of the tp group; of logits, everybody gets all."""
    degrees, total = _degrees(block, of), _NOTHING
    precision = of.stored.precision
    sizes = [
        (item.kind, item.size_bytes)
        for item in forward_collectives(operator, block, degrees, precision)
    ]
    if "vocab" in operator.columns:
        logits = tokens(degrees, split=False) * block.extents["vocab"]
        sizes.append(("all_gather", np.asarray(logits * precision.activation.bytes)))
    for kind, size in sizes:
        total = total + exchanged(kind, size, degrees.tp, of.machine)
    return total


def _grouped(operator: Operator, block: Block, of: Pass) -> PassPrice:
    """The experts that the pass meets, in one launch [assumed] as serving engines'."""
    degrees = of.degrees
    _, n, k = product_shape(operator, block, degrees)
    here = experts.met(block, degrees)
    seconds = product_s(
        here.rows,
        n,
        k,
        here.experts,
        machine=of.machine,
        number=number_of(operator, of.stored.precision),
        weight_bytes=of.stored.each_bytes(operator),
    )
    held = of.stored.held_bytes(operator, block, degrees)
    share = here.experts / held_experts(block, degrees)
    return PassPrice(
        work=Work.of(
            Sourced(seconds=seconds), flops=matmul_flops(here.rows, n, k, here.experts)
        ),
        weight_bytes=held * share,
        cache_bytes=_ZERO,
    )


def _exchange(operator: Operator, block: Block, of: Pass) -> PassPrice:
    """Rows sorted by expert, and sent; or brought back and summed."""
    degrees, precision, machine = of.degrees, of.stored.precision, of.machine
    moved = elements(operator.output, block, experts.routed_degrees(degrees))
    size = moved * operator.forward_elements * precision.activation.bytes
    sorted_s = traffic_s(
        size * machine.framework.moe.traffic,
        device=machine.device,
        rates=machine.rates,
        kernels=operator.kernels,
    )
    asked = block, degrees, precision, machine
    if operator.kind is Kind.DISPATCH:
        sent = experts.dispatched(*asked)
    else:
        beside = "shared_down" in {item.name for item in block.operators}
        sent = experts.combined(*asked, summed=beside)
    return PassPrice(
        work=Work.of(Sourced(seconds=sorted_s), expert_comm=sent),
        weight_bytes=_ZERO,
        cache_bytes=_ZERO,
    )


def _attention(operator: Operator, block: Block, of: Pass) -> PassPrice:
    degrees, precision, machine = of.degrees, of.stored.precision, of.machine
    own = tokens(degrees, split=False) * cached_elements(block, int(degrees.tp))
    stored_s = traffic_s(  # the new tokens' keys and values, read and written
        own * (precision.activation.bytes + of.cache.bytes),
        device=machine.device,
        rates=machine.rates,
    )
    stored = Work.of(Sourced(seconds=stored_s))
    held = of.stored.held_bytes(operator, block, degrees)
    if of.context is None:
        whole, _ = attention_work(OnRank(operator, block, degrees, precision, machine))
        return PassPrice(work=whole + stored, weight_bytes=held, cache_bytes=_ZERO)
    found = core(
        block,
        degrees,
        of.context,
        number=number_of(operator, precision),
        cache=of.cache,
        machine=machine,
    )
    work = Work.of(Sourced(seconds=found.seconds), flops=found.flops)
    return PassPrice(
        work=work + stored, weight_bytes=held, cache_bytes=found.cache_bytes
    )


def _chosen_token(block: Block, of: Pass) -> PassPrice:
    """The likeliest token: each logit read once."""
    logits = tokens(of.last, split=False) * block.extents["vocab"]
    seconds = traffic_s(
        logits * of.stored.precision.activation.bytes,
        device=of.machine.device,
        rates=of.machine.rates,
    )
    return PassPrice(
        work=Work.of(Sourced(seconds=seconds)), weight_bytes=_ZERO, cache_bytes=_ZERO
    )


_PRICES: Final = {
    Kind.MATMUL: _matmul,
    Kind.GROUPED_MATMUL: _grouped,
    Kind.DISPATCH: _exchange,
    Kind.COMBINE: _exchange,
    Kind.ATTENTION: _attention,
}
