"""Seconds and bytes of one operator under a layout: forward, backward, what it keeps.

matrix product   forward m×n×k, input gradient m×k×n, weight gradient k×n×m
attention        by kernel; context parallel exchanges beside it
scan             products of its chunks, and states between them
everything else  bytes at measured bandwidth
tp collectives   whole, or behind the product beside them where software cuts products

Each pass as it was measured, where the machine has samples of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final

import numpy as np

from costmodel.machine import (
    ElementBytes,
    Machine,
    Sourced,
    matmul_flops,
    matmul_s,
    near_members,
    traffic_s,
    zero,
)
from costmodel.operators.attention import attention_work
from costmodel.operators.degrees import Degrees
from costmodel.operators.host_overhead import host_launches, host_waits
from costmodel.operators.low_precision import quantised
from costmodel.operators.moe import balance_sent, exchange_work, grouped_work
from costmodel.operators.recurrence import scan_work
from costmodel.operators.saved_tensors import (
    beside,
    dummy_bytes,
    gradient_bytes,
    handed_on,
    internal,
    written_softmax,
)
from costmodel.operators.sharding import (
    Collective,
    backward_collectives,
    elements,
    forward_collectives,
    local_shape,
    parameters,
    product_shape,
    summands,
    tensor_bytes,
    worked_on,
)
from costmodel.operators.work import OnRank, OperatorPrice, Work
from profiles.arrays import Array
from profiles.hardware import SHIFTED, Format, Precision
from profiles.models import PRODUCTS, Block, Kind, Operator
from profiles.samples import SIXTEEN_BITS, number_of
from profiles.units import US

_ZERO = np.zeros(())

# A product whose rows are no whole 16 bytes loses the wide loads of tensor cores
# [fitted by hand] vTrain's heads of 50257 columns at tp 1, hidden 1024 and 2048: 2.4 to
# 2.7; not among the coefficients.
MISALIGNED = 2.5

# Hopper's warpgroup products take 32-bit operands only where k is innermost (CUTLASS,
# functionality.md: TF32 on 90a in the layout TN alone); others run as on Ampere, at
# 62.9 % of that on average (Luo et al. 2024, arXiv 2402.13499).
TURNED_TF32 = 1 / 0.629

# Elements that a norm in plain PyTorch moves: cast to fp32, square, mean, scale, cast
# back, weight; backward twice that. It keeps the fp32 input and the scaled output.
UNFUSED_NORM = (17.0, 34.0)  # [derived] in 16-bit elements
# Elements that PyTorch's single kernels move, forward and backward. Of a gated MLP's
# activation [counted]: the function 2 and 3, the product 3 and twice 3.
GATED = frozenset({"swiglu", "geglu", "reglu"})
EAGER_GATE = (5.0, 9.0)
# Of turned queries and keys, x cos + (-x'', x') sin [counted]: a product 2, the halves
# negated and joined 3, a product 2, the sum 3; backward two products 4, a half negated
# 1, both halves put back among zeros 4, two sums of gradients 3.
EAGER_TURN = (10.0, 12.0)
# What frameworks hide of the tensor-parallel communication that they could: pieces cost
# copies, launches and multiprocessors. [fitted] 1 − exposed_tensor/megatron-core, whose
# recipes overlap it (0.60 ± 14 %, 159 runs); torchtitan's two pairs of runs with and
# without, which are of another framework, agree: 9.2 and 9.8 % gained.
CUT_HIDES = 0.4
ALONG_SEQUENCE = ("all_gather", "reduce_scatter")
_NOTHING = Sourced(seconds=_ZERO)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sent:
    """Exposed seconds of what the group of tp *ranks* exchanges in each pass, and the
    parameters of whose gradients each of them has one of the *summands*."""

    ranks: Array
    forward: Sourced
    backward: Sourced
    summands: Array = field(default_factory=zero)


def operator_price(
    operator: Operator,
    block: Block,
    degrees: Degrees,
    precision: Precision,
    machine: Machine,
    sent: Sent | None = None,
) -> OperatorPrice:
    """Price *operator*; arrays have the shape that *degrees* broadcasts to.

    What the tp group sends follows from *degrees*, unless it is *sent*.
    """
    at = OnRank(operator, block, degrees, precision, machine)
    price = _PRICES.get(operator.kind, _traffic)
    forward, backward = price(at)
    host = machine.framework.host
    floor = 1.0 if machine.has_host_floor else 0.0
    held = parameters(operator, block, degrees)
    none = np.zeros_like(held)
    grouped = operator.kind is Kind.GROUPED_MATMUL
    trained = none if operator.frozen else held
    peers = degrees.tp if sent is None else sent.ranks
    forth, back = host_launches(at, np.asarray(peers))
    awaited = np.asarray(peers) > 1
    gap_s = np.asarray(host.gap_us * US * floor)
    if sent is None:
        sent = _sent(at, (forward, backward))
    forward += Work.of(
        Sourced(seconds=gap_s),
        tensor_comm=sent.forward,
        host_s=host.forward_s * floor * forth,
        awaited_s=host.forward_s * floor * forth * awaited,
    )
    backward += Work.of(
        Sourced(seconds=2 * gap_s * operator.has_backward),
        tensor_comm=sent.backward,
        host_s=host.backward_s * floor * operator.has_backward * back,
        awaited_s=host.backward_s * floor * operator.has_backward * back * awaited,
    )
    sizes = [tensor_bytes(item, block, degrees, precision) for item in operator.inputs]
    return OperatorPrice(
        forward=forward,
        backward=backward,
        parameters=none if grouped else trained,
        expert_parameters=trained if grouped else none,
        frozen_parameters=held if operator.frozen else none,
        summands=sent.summands,
        waits=host_waits(at),
        dummy_bytes=dummy_bytes(at),
        saved=handed_on(at),
        internal=internal(at),
        softmax=written_softmax(at),
        gradient_bytes=gradient_bytes(at),
        output_bytes=tensor_bytes(operator.output, block, degrees, precision),
        input_bytes=np.maximum(
            sum(sizes, start=_ZERO),
            beside(at),
        ),
    )


def _quantised_first(
    operator: Operator,
    precision: Precision,
    machine: Machine,
    collectives: Iterable[Collective],
) -> Iterable[Collective]:
    """*collectives*, those that gather an operand of a product in the product's format
    where the software quantises it before it travels."""
    number = number_of(operator, precision)
    if not machine.framework.fp8.gathers or number.bytes >= SIXTEEN_BITS:
        return collectives
    if operator.kind not in PRODUCTS:
        return collectives
    share = number.bytes / precision.activation.bytes
    return (
        replace(item, size_bytes=item.size_bytes * share)
        if item.kind == "all_gather"
        else item
        for item in collectives
    )


def _sent(
    at: OnRank,
    work: tuple[Work, Work],
) -> Sent:
    """What the rules of `sharding` send, beside that *work*."""
    operator, block, degrees, precision, machine = at
    forward, backward = work
    sized = partial(_quantised_first, operator, precision, machine)
    return Sent(
        ranks=degrees.tp,
        forward=_exchanged(
            sized(forward_collectives(operator, block, degrees, precision)),
            degrees,
            machine,
            _ZERO,
            _beside_s(operator, forward, machine),
        ),
        backward=_exchanged(
            sized(backward_collectives(operator, block, degrees, precision)),
            degrees,
            machine,
            machine.hides(backward.compute_s / 2),
            _beside_s(operator, backward, machine) / 2,
        ),
        summands=_ZERO if operator.frozen else summands(operator, block, degrees),
    )


def _exchanged(
    collectives: Iterable[Collective],
    degrees: Degrees,
    machine: Machine,
    behind_s: Array,
    beside_s: Array,
) -> Sourced:
    """Exposed seconds of tp collectives; hidden ones cost what *behind_s* leaves.

    Where the software cuts products, *beside_s* is the product that makes or takes the
    collective's tensor.
    """
    total, near = _NOTHING, None
    for item in collectives:
        if near is None:
            near = near_members(np.asarray(1), degrees.tp, machine.island)
        how: dict[str, Any] = {"near": near, "beside": item.beside}
        taken = machine.collective(item.kind, item.size_bytes, ranks=degrees.tp, **how)
        if item.hidden:
            taken = taken.behind(behind_s)
        elif machine.framework.overlap.cuts_products and item.kind in ALONG_SEQUENCE:
            taken = _cut(taken, beside_s, degrees)
        total = total + taken
        if machine.framework.kernels.batch_first and item.kind in ALONG_SEQUENCE:
            total = total + _into_place(item.size_bytes, degrees, machine)
    return total * machine.framework.overlap.exposed_tensor


def _cut(taken: Sourced, product_s: Array, degrees: Degrees) -> Sourced:
    """What is left of a gather or scatter that is cut into tp pieces with the product
    beside it: one piece of the product runs alone, the others while the next piece
    travels [1]_. Of what could so be hidden CUT_HIDES is.

    .. [1] Wang et al., Overlap Communication with Dependent Computation via
       Decomposition, ASPLOS 2023, section 5; so do Transformer Engine's user buffers
       and PyTorch's asynchronous tensor parallelism.
    """
    behind = product_s * (1 - 1 / degrees.tp)
    return taken.behind(CUT_HIDES * np.minimum(taken.seconds, behind))


def _beside_s(operator: Operator, work: Work, machine: Machine) -> Array:
    """Seconds of a pass that collectives beside it can hide behind: a layer's products,
    not the embedding, the head and the loss, which no framework cuts."""
    cut = operator.kind in PRODUCTS and "vocab" not in operator.columns
    return np.asarray(machine.hides(work.compute_s) * cut)


def _into_place(size_bytes: Array, degrees: Degrees, machine: Machine) -> Sourced:
    """The copy between what a collective along the sequence takes or gives, rank by
    rank, and several sequences that lie one after another."""
    several = (degrees.micro_batch > 1) & (degrees.tp > 1)
    copied_s = traffic_s(
        2 * size_bytes, device=machine.device, rates=machine.rates, kernels=1
    )
    return Sourced(seconds=copied_s * several)


def _matmul(at: OnRank) -> tuple[Work, Work]:
    operator, block, degrees, precision, machine = at
    m, n, k = product_shape(operator, block, degrees)
    number = number_of(operator, precision)
    product_s = partial(
        matmul_s, device=machine.device, rates=machine.rates, number=number
    )
    slower = misaligned(n, k)
    turned = _turned(number, machine)
    fused = machine.framework.gradients.accumulation == "fused"
    written = precision.gradient.bytes if fused else precision.activation.bytes
    made = ElementBytes(output=written)
    timed = _timed_product(at, (m, n, k), number)
    narrowed, back = quantised(
        operator,
        (m, n, k),
        degrees,
        number,
        machine,
        shifted=precision.name == SHIFTED,
    )
    forward = timed("forward", roofline=lambda: product_s(m, n, k) * slower)
    forward = forward + narrowed
    to_input = timed(
        "backward-input", roofline=lambda: product_s(m, k, n) * slower * turned
    )
    to_input = to_input + back
    flops = matmul_flops(m, n, k)
    if operator.frozen:
        return Work.of(forward, flops=flops), Work.of(to_input, flops=flops)
    to_weight = timed(
        "backward-weight",
        roofline=lambda: product_s(k, n, m, stored=made) * slower * turned,
    )
    return (
        Work.of(forward, flops=flops),
        Work.of(to_input + to_weight, flops=2 * flops, weight_s=to_weight.seconds),
    )


def _timed_product(
    at: OnRank, shape: tuple[Array, Array, Array], number: Format
) -> Callable[..., Sourced]:
    """Asks for samples of a product; of a convolution first for its own, else for those
    of a product of as many windows."""
    operator, block, degrees, _, machine = at
    product = partial(machine.operator, lambda: ("matmul", shape), number=number)
    if not operator.sizes:
        return product
    local = partial(local_shape, operator, block, degrees)

    def convolution(direction: str, roofline: Callable[[], Array]) -> Sourced:
        def of_windows() -> Array:
            return product(direction, roofline=roofline).seconds

        return machine.operator(local, direction, number, of_windows)

    return convolution


def _turned(number: Format, machine: Machine) -> float:
    """How much longer products take whose operands are not contiguous along k, as both
    of backward's are not."""
    hopper = machine.device.architecture.lower().startswith("hopper")
    return TURNED_TF32 if hopper and number is Format.TF32 else 1.0


def misaligned(n: Array, k: Array) -> Array:
    """How much longer a product takes whose weight has rows of no whole 16 bytes."""
    odd = (np.asarray(n) % 8 != 0) | (np.asarray(k) % 8 != 0)
    return np.where(odd, MISALIGNED, 1.0)


def _traffic(at: OnRank) -> tuple[Work, Work]:
    operator, block, degrees, precision, machine = at
    size = precision.activation.bytes * machine.framework.kernels.elementwise
    moved = elements(worked_on(operator), block, degrees) * size
    passes = (operator.forward_elements, operator.backward_elements)
    if operator.is_norm and not machine.framework.kernels.fused_norm:
        passes = UNFUSED_NORM
    if machine.framework.kernels.eager:
        passes = _eager(operator, block) or passes
    if operator.kind is Kind.CROSS_ENTROPY:
        passes = machine.framework.kernels.loss_elements or passes
        moved = moved / max(precision.activation.bytes / SIXTEEN_BITS, 1.0)
    local = partial(local_shape, operator, block, degrees)
    forward, backward = (
        Work.of(
            machine.operator(
                local,
                direction,
                precision.activation,
                partial(
                    traffic_s,
                    moved * count,
                    device=machine.device,
                    rates=machine.rates,
                    kernels=operator.kernels,
                ),
            )
        )
        for direction, count in zip(("forward", "backward"), passes, strict=True)
    )
    if operator.function == "top-k":
        forward += Work.of(
            Sourced(seconds=_ZERO), expert_comm=balance_sent(block, degrees, machine)
        )
    return forward, backward if operator.has_backward else Work()


def _eager(operator: Operator, block: Block) -> tuple[float, float] | None:
    """Elements that single kernels move for each of the output, either way; None: as
    many as a fused one. Values are not turned."""
    if operator.function in GATED:
        return EAGER_GATE
    if operator.function != "rotary":
        return None
    query, both = block.extents["query"], block.extents["key_value"]
    share = (query + both / 2) / (query + both)
    forward, backward = EAGER_TURN
    return forward * share, backward * share


_PRICES: Final = {
    Kind.MATMUL: _matmul,
    Kind.ATTENTION: attention_work,
    Kind.SCAN: scan_work,
    Kind.GROUPED_MATMUL: grouped_work,
    Kind.DISPATCH: exchange_work,
    Kind.COMBINE: exchange_work,
}
