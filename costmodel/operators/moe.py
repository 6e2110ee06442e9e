"""Seconds of experts on the busiest rank: products of each, and the exchange of rows.

    product    one grouped launch over the rank's experts, three in all      → grouped
    dispatch   rows sorted in memory, an all-to-all over ep, and where experts are cut
    combine    in width, an all-gather (reduce-scatter) of rows over etp,
               or all-to-all exchanges of as much                            → exchanged

(GShard, Lepikhin et al., 2020, section 3; Megatron-Core's all-to-all dispatcher.)
"""

from __future__ import annotations

from functools import partial
from typing import Any, Final

import numpy as np

from costmodel.machine import (
    ElementBytes,
    Machine,
    Sourced,
    grouped_matmul_s,
    matmul_flops,
    near_members,
    traffic_s,
)
from costmodel.operators.degrees import (
    Degrees,
    held_experts,
    load,
    routed_rows,
    rows_a_token,
    sent_rows,
)
from costmodel.operators.low_precision import quantised
from costmodel.operators.sharding import elements, local_shape, product_shape
from costmodel.operators.work import OnRank, Work
from profiles.arrays import Array
from profiles.hardware import Format, Precision
from profiles.models import SORTED, Block, Kind
from profiles.samples import SIXTEEN_BITS, SORTED_AGAIN, number_of

COUNT_BYTES: Final = 8  # of an expert's rows: int64
BALANCE_BYTES: Final = 4  # of a sequence's tokens that chose an expert: fp32
# What adding an expert's bias, weighed by its rows' probabilities, launches over its
# product, and what it moves of an element, each way [derived] from Megatron-Core
# (experts.py, _apply_bias): bias times probability, the sum, all experts' parts joined;
# backward both products once more, and their sums over rows and over columns.
BIASED: Final = (3.0, 6.0, 6.0)


def grouped_work(at: OnRank) -> tuple[Work, Work]:
    """Forward and backward of the experts' products, each expert with as many rows."""
    operator, block, degrees, precision, machine = at
    m, n, k = product_shape(operator, block, degrees)
    groups = held_experts(block, degrees)
    number = number_of(operator, precision)
    product_s = partial(
        grouped_matmul_s,
        device=machine.device,
        rates=machine.rates,
        number=number,
    )
    fused = machine.framework.gradients.accumulation == "fused"
    made = precision.gradient.bytes if fused else precision.activation.bytes
    flops = matmul_flops(m, n, k, groups)
    local = partial(local_shape, operator, block, degrees)
    timed = partial(machine.operator, local, number=number)
    forward = timed("forward", roofline=lambda: product_s(groups, m, n, k))
    to_input = timed("backward-input", roofline=lambda: product_s(groups, m, k, n))
    narrowed, back = quantised(operator, (m, n, k), degrees, number, machine, groups)
    biased, of_biases = _biased(at)
    forward, to_input = forward + narrowed + biased, to_input + back + of_biases
    if operator.frozen:
        return Work.of(forward, flops=flops), Work.of(to_input, flops=flops)
    to_weight = timed(
        "backward-weight",
        roofline=lambda: product_s(groups, k, n, m, stored=ElementBytes(output=made)),
    )
    return (
        Work.of(forward, flops=flops),
        Work.of(to_input + to_weight, flops=2 * flops, weight_s=to_weight.seconds),
    )


def grouped_launches(at: OnRank) -> Array:
    """Host work of a grouped product, over an operator's: each further expert's part,
    where a framework issues them one by one, and the quantising of its operands."""
    operator, block, degrees, precision, machine = at
    by, number = machine.framework.moe, number_of(operator, precision)
    together = by.quantises_together and number is not Format.FP8
    each = by.launch
    if number.bytes < SIXTEEN_BITS and not together:
        each += by.quantise_launch
    if _adds_biases(at):
        each += by.launch * BIASED[0]
    return np.asarray(1.0 + each * (held_experts(block, degrees) - 1.0))


def _adds_biases(at: OnRank) -> bool:
    """Whether each expert's bias is added to its rows outside of the product, as what
    goes back is weighed with it."""
    operator, machine = at.operator, at.machine
    back = operator.output.dims[-1] == "hidden"
    return operator.bias and back and machine.framework.moe.launch > 0


def _biased(at: OnRank) -> tuple[Sourced, Sourced]:
    """Seconds of adding them, expert by expert, and of their gradients."""
    operator, block, degrees, precision, machine = at
    if not _adds_biases(at):
        return Sourced(seconds=np.zeros(())), Sourced(seconds=np.zeros(()))
    moved = elements(operator.output, block, degrees) * precision.activation.bytes
    forward, backward = (
        Sourced(
            seconds=traffic_s(moved * times, device=machine.device, rates=machine.rates)
        )
        for times in BIASED[1:]
    )
    return forward, backward


def exchange_work(at: OnRank) -> tuple[Work, Work]:
    """Forward and backward of dispatch or combine: memory traffic, and what is sent.

    The gradient of a dispatch is a combine, and the other way round.
    """
    operator, block, degrees, precision, machine = at
    works = []
    for direction, gathers in (
        ("forward", operator.kind is Kind.DISPATCH),
        ("backward", operator.kind is Kind.COMBINE),
    ):
        moved = _sorted(direction, at)
        sent = exchanged(block, degrees, precision, machine, gathers=gathers)
        if gathers and direction == "forward":
            sent = sent + _counted(block, degrees, machine)
        works.append(Work.of(moved, expert_comm=sent))
    return works[0], works[1]


def _sorted(
    direction: str,
    at: OnRank,
) -> Sourced:
    """Seconds of sorting a rank's rows by expert, and what other ranks sent; or of
    undoing both. Either as it was measured, else by the bytes that are moved. A token
    that is sent once is sorted where it arrives alone."""
    operator, block, degrees, precision, machine = at
    size = precision.activation.bytes * machine.framework.moe.traffic
    moved = elements(operator.output, block, degrees) * size
    combines = operator.kind is Kind.COMBINE
    if combines:  # elements are counted by tokens, of which a busy rank has more
        moved = moved * rows_a_token(block, degrees) / block.extents["routed"]
    again = SORTED * (block.extents["routed"] if combines else 1)
    passes = operator.forward_elements
    if direction == "backward":
        passes = operator.backward_elements
    first = passes - again
    if machine.framework.moe.sends_once:
        passes = first
    traffic = partial(
        traffic_s, device=machine.device, rates=machine.rates, kernels=operator.kernels
    )
    measured = machine.measured
    number = precision.activation
    if measured is None or not measured.table(
        operator.function, direction, number.value
    ):
        return Sourced(seconds=traffic(moved * passes))
    own = machine.operator(
        partial(local_shape, operator, block, degrees),
        direction,
        number,
        lambda: traffic(moved * first),
    )
    shape = routed_rows(block, degrees), sent_width(block)
    others = machine.operator(
        lambda: (SORTED_AGAIN[operator.function], shape),
        direction,
        number,
        lambda: traffic(moved * again),
    )
    return own + others.where(degrees.ep * degrees.etp > 1)


def sent_width(block: Block) -> int:
    """Elements of a row as it travels: of all of the stream, or of a latent."""
    return block.extents.get("latent") or block.extents["hidden"]


def balance_sent(block: Block, degrees: Degrees, machine: Machine) -> Sourced:
    """Seconds of summing who chose whom over the ranks that share a sequence, where
    that was measured."""
    if machine.measured is None:
        return Sourced(seconds=np.zeros(()))
    size = np.asarray(degrees.micro_batch * block.extents["experts"] * BALANCE_BYTES)
    one, over_tp = np.asarray(1), degrees.tp if degrees.sequence_parallel else 1
    groups = ((degrees.cp, degrees.tp), (np.asarray(over_tp), one))
    over_cp, within = (
        machine.collective(
            "all_reduce",
            size,
            ranks=ranks,
            near=near_members(apart, ranks, machine.island),
        )
        for ranks, apart in groups
    )
    return over_cp + within


def _counted(block: Block, degrees: Degrees, machine: Machine) -> Sourced:
    """Seconds of telling each rank how many rows will come, where that was measured:
    fitted rates of an exchange have it in them."""
    if machine.measured is None or block.capacity is not None:
        return Sourced(seconds=np.zeros(()))
    size = np.asarray(block.extents["experts"] * COUNT_BYTES)
    to_experts = machine.collective(
        "all_to_all",
        size,
        ranks=degrees.ep,
        near=near_members(degrees.etp, degrees.ep, machine.island),
    )
    to_sharers = machine.collective(
        "all_gather",
        size * degrees.etp,
        ranks=degrees.etp,
        near=near_members(np.asarray(1), degrees.etp, machine.island),
    )
    return to_experts + to_sharers


def exchanged(
    block: Block,
    degrees: Degrees,
    precision: Precision,
    machine: Machine,
    *,
    gathers: bool,
) -> Sourced:
    """Seconds of sending rows to their experts (*gathers*), or back to their tokens."""
    width = sent_width(block) * precision.activation.bytes
    size = sent_rows(block, degrees) * load(block, degrees) * width
    by = machine.framework.moe
    kind = "all_gather" if gathers else "reduce_scatter"
    over_width = machine.collective(
        kind if by.gathers_rows else "all_to_all",
        routed_rows(block, degrees) * width,
        ranks=degrees.etp,
        near=near_members(np.asarray(1), degrees.etp, machine.island),
    )
    send = _once if by.sends_once else _all_to_all
    sent = send(size, block, degrees, machine)
    return (sent + over_width) * by.exposed


def _all_to_all(
    size: Array, block: Block, degrees: Degrees, machine: Machine
) -> Sourced:
    """Each row for itself: a token goes to a rank as often as to its experts."""
    near = near_members(degrees.etp, degrees.ep, machine.island)
    return machine.collective("all_to_all", size, ranks=degrees.ep, near=near)


def _once(size: Array, block: Block, degrees: Degrees, machine: Machine) -> Sourced:
    """Each token once to every domain that it goes to, there once to every rank.

    The two ways work side by side, and the longer one counts (DeepEP, DeepSeek-V3,
    section 3.2.2).
    """
    k, near = (
        block.extents["routed"],
        near_members(degrees.etp, degrees.ep, machine.island),
    )
    domains = degrees.ep // near
    across = machine.collective(
        "all_to_all",
        size * distinct(domains, k) / k,
        ranks=domains,
        near=np.ones_like(domains),
    )
    inside = machine.collective(
        "all_to_all", size * distinct(degrees.ep, k) / k, ranks=near, near=near
    )
    return across + inside.behind(across.seconds)


def distinct(places: Array, chosen: Any) -> Array:
    """How many of *places* at least one of *chosen* experts lies in, chosen evenly.

    >>> float(distinct(np.array(4), np.array(2)))
    1.75
    """
    return np.asarray(places * (1.0 - (1.0 - 1.0 / places) ** chosen))
