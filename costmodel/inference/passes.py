"""One pass of inference through a block on a rank: seconds, FLOPs, bytes read.

    prefill    whole prompts: attention as in a training forward (`attention_work`)
    decode     one token a sequence: products of few rows (`product_s`), attention over
               the cache (`_decoded`)

Everything else is priced as in training: bytes at measured bandwidth, collectives of
the tp group by the rules of `sharding`, the host's launches.

Every tp rank of a replica has the replica's tokens. Experts are cut in width over tp
(ep = 1), or lie whole on ep ranks: those of one replica, or of several that share them.

    ep = 1, tp     partial sums of the replica's tokens, all-reduced over tp
    ep = tp · d    d replicas' tokens, each rank of tp those of a share: rows there and
                   back all-to-all over ep, then gathered over tp
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np

from costmodel.inference.kv_cache import Stored, cached_elements, is_latent, span
from costmodel.machine import (
    ElementBytes,
    Machine,
    Sourced,
    attention_rate,
    matmul_flops,
    matmul_s,
    near_members,
    traffic_s,
)
from costmodel.operators import (
    Degrees,
    OnRank,
    Work,
    attention_kernel,
    attention_work,
    elements,
    forward_collectives,
    held_experts,
    host_launches,
    load,
    misaligned,
    operator_price,
    product_shape,
    tokens,
)
from profiles.arrays import Array
from profiles.hardware import Format
from profiles.models import Block, Kind, Operator
from profiles.samples import SIXTEEN_BITS, number_of
from profiles.units import US

PEER_TO_PEER: Final = ("nvlink", "nvswitch", "xgmi")  # whose devices read each other
HEAD: Final = "head"
_ZERO = np.zeros(())
_NOTHING = Sourced(seconds=_ZERO)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pass:
    """What is the same for all blocks of a pass: how they are cut, how weights and the
    cache are stored, on what machine. `context` are the tokens that each sequence has
    (an array) where `fresh` new tokens of each are decoded (`micro_batch` counts them
    all); None: prompts are read. With `graphs` no host issues kernels."""

    degrees: Degrees
    stored: Stored
    cache: Format
    machine: Machine
    context: Array | None = None
    fresh: int = 1
    graphs: bool = False

    def degrees_in(self, block: Block) -> Degrees:
        """The head sees the last token of each sequence alone."""
        return replace(self.degrees, seq_len=1) if block.name == HEAD else self.degrees

    def traffic_s(self, size_bytes: Any, kernels: float = 1.0) -> Array:
        machine = self.machine
        return traffic_s(
            size_bytes, device=machine.device, rates=machine.rates, kernels=kernels
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class PassPrice:
    """One pass through a block: its work, and bytes of weights and cache it reads."""

    work: Work = field(default_factory=Work)
    weight_bytes: Array = field(default_factory=lambda: _ZERO)
    cache_bytes: Array = field(default_factory=lambda: _ZERO)

    def __mul__(self, count: int) -> PassPrice:
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


def block_pass(block: Block, of: Pass) -> PassPrice:
    """A pass through *block*; the head also reads each logit once more, for the
    likeliest token."""
    total = PassPrice()
    for operator in served(block):
        price = _PRICES.get(operator.kind, _elementwise)
        total = total + _issued(operator, block, of, price(operator, block, of))
    if block.name == HEAD:
        logits = tokens(of.degrees_in(block), split=False) * block.extents["vocab"]
        seconds = of.traffic_s(logits * of.stored.precision.activation.bytes)
        total = total + PassPrice(work=Work.of(Sourced(seconds=seconds)))
    return total


def served(block: Block) -> Iterator[Operator]:
    """The operators of *block* that inference runs: no loss."""
    return (item for item in block.operators if item.kind is not Kind.CROSS_ENTROPY)


def _issued(operator: Operator, block: Block, of: Pass, price: PassPrice) -> PassPrice:
    """*price* with what the host needs to issue it, and the gap after its kernels."""
    if of.graphs or not of.machine.has_host_floor:
        return price
    machine, degrees = of.machine, of.degrees_in(block)
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
    degrees = of.degrees_in(block)
    if "routed" in operator.output.dims:
        degrees = routed_degrees(degrees)
    # `_issued` adds the host
    hostless = of.machine.framework.variant(host={"forward_us": 0.0, "gap_us": 0.0})
    machine = replace(of.machine, framework=hostless)
    priced = operator_price(operator, block, degrees, of.stored.precision, machine)
    held = of.stored.held_bytes(operator, block, degrees)
    read = _ZERO if operator.kind is Kind.EMBEDDING else held
    return PassPrice(work=priced.forward, weight_bytes=read)


def _matmul(operator: Operator, block: Block, of: Pass) -> PassPrice:
    degrees = of.degrees_in(block)
    m, n, k = product_shape(operator, block, degrees)
    work = Work.of(
        Sourced(seconds=_product_s(operator, of, m, n, k)),
        tensor_comm=_summed(operator, block, of),
        flops=matmul_flops(m, n, k),
    )
    held = of.stored.held_bytes(operator, block, degrees)
    return PassPrice(work=work, weight_bytes=held)


def _product_s(operator: Operator, of: Pass, *shape: Any) -> Array:
    return product_s(
        *shape,
        machine=of.machine,
        number=of.stored.multiplied_in(operator),
        weight_bytes=of.stored.each_bytes(operator),
    )


def _summed(operator: Operator, block: Block, of: Pass) -> Sourced:
    """Collectives of the tp group; of logits, everybody gets all."""
    degrees, total = of.degrees_in(block), _NOTHING
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


def exchanged(kind: str, size_bytes: Any, ranks: Array, machine: Machine) -> Sourced:
    """Seconds of a collective of *kind* over *ranks* that lie side by side: NCCL's, or
    in one shot.

    Sums of a few tokens are small, and NCCL's launches and hops are most of what they
    take. Inside a domain of peer-to-peer links serving engines sum them in one kernel:
    a barrier, every rank reads the tensor of every other one, a barrier (the one-shot
    all-reduce of TensorRT-LLM, of vLLM's custom_all_reduce and of PyTorch's intra-node
    communication): a kernel + 2 hops + (k - 1) N / bandwidth; the lesser counts.
    """
    island, links = machine.island, machine.links
    size = np.asarray(size_bytes, dtype=float)
    near = near_members(np.asarray(1), ranks, island)
    found = machine.collective(kind, size, ranks=ranks, near=near)
    inside = np.all(near == ranks) and island.levels[0].kind.lower() in PEER_TO_PEER
    if kind != "all_reduce" or not inside:
        return found
    bandwidth = links.inner_bytes_per_s * links.inner.fraction
    kernel_s = traffic_s(2 * size, device=machine.device, rates=machine.rates)
    shot_s = kernel_s + 2 * links.inner.hop_s + (ranks - 1) * size / bandwidth
    return Sourced(seconds=np.where(ranks > 1, np.minimum(found.seconds, shot_s), 0.0))


_STEP: Final = 8  # rows: mma.m16n8k16 with operands swapped (PTX ISA, warp-level mma)
_MOST_ROWS: Final = 128  # of one tile
_COLUMNS: Final = 128
_LARGE: Final = 1 / 256 + 1 / 128  # edges of the tile that rates are normalised by


def product_s(
    m: Any,
    n: Any,
    k: Any,
    batch: Any = 1.0,
    *,
    machine: Machine,
    number: Format,
    weight_bytes: float,
) -> Array:
    """Seconds of *batch* products (m x k)(k x n) in one launch, multiplied in *number*,
    with weights of *weight_bytes* an element. Operands of 8 bits or fewer are made of
    16-bit ones before."""
    shape = tuple(np.asarray(size, dtype=float) for size in (m, n, k, batch))
    device, rates = machine.device, machine.rates
    found = matmul_s(
        *shape,
        device=device,
        rates=rates,
        number=number,
        stored=ElementBytes(weight=weight_bytes),
    )
    few = shape[0] <= _MOST_ROWS
    if np.any(few):
        low = _few_rows_s(shape, machine, number, weight_bytes)
        found = np.where(few, np.minimum(found, low), found)
    found = found * misaligned(n, k)
    if number.bytes < SIXTEEN_BITS:
        made = batch * m * k * (SIXTEEN_BITS + number.bytes)
        found = found + traffic_s(made, device=device, rates=rates)
    return np.asarray(found)


def _few_rows_s(
    shape: tuple[Array, ...], machine: Machine, number: Format, weight_bytes: float
) -> Array:
    """The law of `matmul_s`, of tile and edges, without waves: decoding multiplies a
    row a sequence, and kernels for that take tiles as low as the tensor cores'
    instructions allow, and split the sum over k where the output has fewer tiles than
    the device has multiprocessors (split-K of cuBLAS and CUTLASS)."""
    m, n, k, batch = shape
    device, fit = machine.device, machine.rates.matmul
    rows = _STEP * np.ceil(m / _STEP)
    tiles = batch * np.ceil(n / _COLUMNS)
    parts = np.maximum(device.multiprocessors / tiles, 1.0)
    cost = rows * _COLUMNS + fit.edge * (rows + _COLUMNS)
    units = tiles * cost / (1.0 + fit.edge * _LARGE)
    flops_per_s = fit.sustained_of(number) * device.peak_flops_per_s(number)
    compute = 2.0 * units * (k + parts * fit.fill_k) / flops_per_s
    written = max(number.bytes, SIXTEEN_BITS)  # partial sums stay in the cache
    moved = batch * ((number.bytes * m + weight_bytes * n) * k + written * m * n)
    traffic = moved / (fit.bandwidth * device.memory_bytes_per_s)
    return np.asarray(np.sqrt(np.hypot(compute**2, traffic**2)) + fit.overhead_s)


def _attention(operator: Operator, block: Block, of: Pass) -> PassPrice:
    degrees, precision = of.degrees, of.stored.precision
    own = tokens(degrees, split=False) * cached_elements(block, int(degrees.tp))
    # the new tokens' keys and values, read and written
    stored_s = of.traffic_s(own * (precision.activation.bytes + of.cache.bytes))
    stored = PassPrice(
        work=Work.of(Sourced(seconds=stored_s)),
        weight_bytes=of.stored.held_bytes(operator, block, degrees),
    )
    if of.context is not None:
        return _decoded(operator, block, of) + stored
    whole, _ = attention_work(OnRank(operator, block, degrees, precision, of.machine))
    return PassPrice(work=whole) + stored


def _decoded(operator: Operator, block: Block, of: Pass) -> PassPrice:
    """Attention of `micro_batch` tokens, `fresh` of each sequence, over its cache.

        heads      2 products of 2 · heads · span · head_dim FLOPs a sequence
        latents    absorbed: each head's query meets the latent itself, 2 · heads ·
                   span · (2 · kv_rank + rope) (DeepSeek-V2, 2024, section 2.1.2)

    The cache is read once, in as many pieces side by side as fill the device
    (Flash-Decoding, Dao et al., 2023).
    """
    degrees, machine, number = (
        of.degrees,
        of.machine,
        number_of(operator, of.stored.precision),
    )
    seen, batch = span(block, of.context), degrees.micro_batch
    if is_latent(block):
        width = 2 * block.extents["kv_rank"] + block.extents["rope"]
    else:
        width = 2 * block.head_dim
    heads = -(-block.heads // degrees.tp)
    pairs = np.asarray(batch * heads * seen, dtype=float)
    flops = 2.0 * pairs * width
    read = np.asarray(batch / of.fresh * seen * of.cache.bytes, dtype=float)
    read = read * cached_elements(block, int(degrees.tp))
    rate = attention_rate(attention_kernel(degrees, machine), machine.rates)
    kept, kernels, moved = rate.forward, 1.0, read
    if rate.writes_scores:
        kept, kernels = machine.rates.matmul.sustained_of(number), 3.0
        each = rate.forward_bytes_per_score * max(number.bytes / SIXTEEN_BITS, 1.0)
        moved = read + pairs * each
    computed_s = flops / (kept * machine.device.peak_flops_per_s(number))
    both_s = np.sqrt(np.hypot(computed_s**2, of.traffic_s(moved, kernels=0.0) ** 2))
    seconds = both_s + of.traffic_s(0.0, kernels=kernels)
    work = Work.of(Sourced(seconds=seconds), flops=flops)
    return PassPrice(work=work, cache_bytes=read)


def _grouped(operator: Operator, block: Block, of: Pass) -> PassPrice:
    """The experts that the pass meets, in one launch [assumed] as serving engines'."""
    degrees = of.degrees
    _, n, k = product_shape(operator, block, degrees)
    here = met(block, degrees)
    seconds = _product_s(operator, of, here.rows, n, k, here.experts)
    flops = matmul_flops(here.rows, n, k, here.experts)
    share = here.experts / held_experts(block, degrees)
    return PassPrice(
        work=Work.of(Sourced(seconds=seconds), flops=flops),
        weight_bytes=of.stored.held_bytes(operator, block, degrees) * share,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Met:
    """What a rank's experts do in a pass: `experts` of them have `rows` each."""

    experts: Array
    rows: Array


def met(block: Block, degrees: Degrees) -> Met:
    """The experts of the busiest rank that a pass meets, and the rows of each.

    Of E experts n tokens meet E (1 − (1 − k/E)^n) on average, chosen evenly: few tokens
    read few experts' weights, and all of them are there.
    """
    every, chosen = block.extents["experts"], block.extents["routed"]
    seen = tokens(degrees, split=False) * _replicas_together(degrees)
    held = held_experts(block, degrees)
    share = chosen / every
    experts = held * -np.expm1(seen * np.log1p(-min(share, 1 - 1e-12)))
    experts = np.maximum(experts, np.minimum(chosen / degrees.ep, held))
    rows = seen * share * held * load(block, degrees)
    return Met(experts=experts, rows=rows / experts)


def _replicas_together(degrees: Degrees) -> Array:
    """Replicas that share experts."""
    return np.asarray(np.maximum(degrees.ep // degrees.tp, 1))


def routed_degrees(degrees: Degrees) -> Degrees:
    """Degrees under which `sharding` counts as many routed rows as a rank has: where
    experts lie on several ranks, each of tp sends a share of the tokens."""
    if int(degrees.ep) == 1:
        return degrees
    seen = int(tokens(degrees, split=False))
    one = np.ones_like(degrees.micro_batch)
    return replace(degrees, micro_batch=one, seq_len=seen, sequence_parallel=True)


def _exchange(operator: Operator, block: Block, of: Pass) -> PassPrice:
    """Rows sorted by expert, and sent; or brought back and summed."""
    moved = elements(operator.output, block, routed_degrees(of.degrees))
    size = moved * operator.forward_elements * of.stored.precision.activation.bytes
    sorted_s = of.traffic_s(
        size * of.machine.framework.moe.traffic, kernels=operator.kernels
    )
    sent = _dispatched(block, of)
    if operator.kind is Kind.COMBINE:
        sent = _combined(block, of, sent)
    return PassPrice(work=Work.of(Sourced(seconds=sorted_s), expert_comm=sent))


def _dispatched(block: Block, of: Pass) -> Sourced:
    """Seconds of sending rows to the ranks of their experts; nothing inside a replica,
    whose ranks have its tokens."""
    degrees = of.degrees
    if int(_replicas_together(degrees)) == 1:
        return _NOTHING
    own = -(-tokens(degrees, split=False) // degrees.tp)
    width = block.extents["hidden"] * of.stored.precision.activation.bytes
    size = own * block.extents["routed"] * width * load(block, degrees)
    return exchanged("all_to_all", size, degrees.ep, of.machine)


def _combined(block: Block, of: Pass, sent: Sourced) -> Sourced:
    """Seconds of bringing rows back, as they were *sent*, and of every tp rank having
    the sums; where shared experts' are summed anyway, partial sums go with them."""
    degrees = of.degrees
    width = block.extents["hidden"] * of.stored.precision.activation.bytes
    size = np.asarray(tokens(degrees, split=False) * width)
    several = int(_replicas_together(degrees)) > 1
    summed = "shared_down" in {item.name for item in block.operators}
    if not several and summed:
        return _NOTHING
    kind = "all_gather" if several else "all_reduce"
    return exchanged(kind, size, degrees.tp, of.machine) + sent


_PRICES: Final = {
    Kind.MATMUL: _matmul,
    Kind.GROUPED_MATMUL: _grouped,
    Kind.DISPATCH: _exchange,
    Kind.COMBINE: _exchange,
    Kind.ATTENTION: _attention,
}
