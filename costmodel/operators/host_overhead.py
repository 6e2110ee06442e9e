"""What the host issues of one operator, in launches of an ordinary operator.

What a host that waits for the device leaves the device without work: `waited_s`.

How far apart a block's messages are: the compute that lies between two of them.

On a CPU what carries a message takes turns with what the other rank computes next, up
to a slice of the scheduler: a message costs the more, the longer that is
(`profiles.measure.timing.clock`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np

from costmodel.operators.attention import falls_back, messages
from costmodel.operators.degrees import Degrees
from costmodel.operators.moe import grouped_launches
from costmodel.operators.recurrence import state_messages
from costmodel.operators.sharding import backward_collectives, forward_collectives
from costmodel.operators.work import OnRank, OperatorPrice
from profiles.arrays import Array
from profiles.hardware import Precision
from profiles.models import MIXERS, Block, Kind
from profiles.samples import SIXTEEN_BITS, number_of


def apart_s(
    block: Block,
    degrees: Degrees,
    precision: Precision,
    prices: Mapping[str, OperatorPrice],
) -> Array:
    """Seconds of compute for each message of tensor and context parallelism, over both
    passes; inf where there are none. Experts exchange beside them and do not count."""
    computed: Array = np.zeros(())
    count: Array = np.zeros(())
    for operator in block.operators:
        price = prices[operator.name]
        computed = computed + price.forward.compute_s + price.backward.compute_s
        forward = forward_collectives(operator, block, degrees, precision)
        backward = backward_collectives(operator, block, degrees, precision)
        count = count + (degrees.tp > 1) * sum(1 for _ in (*forward, *backward))
        if operator.kind in MIXERS:
            sent = messages if operator.kind is Kind.ATTENTION else state_messages
            times = sum(
                one.times
                for direction in ("forward", "backward")
                for one in sent(direction, block, degrees, precision)
            )
            count = count + (degrees.cp > 1) * times
    several = np.maximum(count, 1)
    return np.where(count > 0, computed / several, np.inf)


def host_waits(at: OnRank) -> Any:
    """Where the host waits before *at*, for counts of rows that go to experts: an array
    of the shape of ep, or False."""
    by, on = at.machine.framework.moe, at.machine
    open_ended = at.operator.kind is Kind.DISPATCH and at.block.capacity is None
    if not (open_ended and by.waits and on.has_host_floor):
        return False
    return by.waits_alone or np.asarray(at.degrees.ep) > 1


def waited_s(prices: Sequence[OperatorPrice]) -> Array:
    """Seconds of a block's forward that the device is idle as its host has waited for
    it, among blocks alike.

    From one wait to the next the host issues each operator after the one before it,
    and the device starts each when it is issued and the one before it is done. Without
    waits the slower of both never stops.
    """
    places = [place for place, price in enumerate(prices) if np.any(price.waits)]
    if not places:
        return np.zeros(())
    issued: Array = np.zeros(())
    done: Array = np.zeros(())
    for price in (*prices[places[0] :], *prices[: places[0]]):
        if np.any(price.waits):
            issued = done = np.maximum(issued, done)
        issued = issued + price.forward.host_s
        done = np.maximum(done, issued) + price.forward.device_s
    works = [price.forward for price in prices]
    busy = sum((work.device_s for work in works), start=np.zeros(()))
    issuing = sum((np.asarray(work.host_s) for work in works), start=np.zeros(()))
    found = np.maximum(issued, done) - np.maximum(busy, issuing)
    return np.where(prices[places[0]].waits, found, 0.0)


# What a softmax of single kernels adds: casts, scale, mask, softmax, dropout, each way
# [fitted by hand] vTrain's one-node runs at tp 8, micro-batch 1 against 2; not among
# the coefficients.
SINGLE_KERNELS: Final = 3.0
# What a vocabulary cut over tp ranks adds where the loss runs by single kernels
# [derived] from Megatron-LM: masking ids and rows some eight kernels, the loss some
# twenty (vocab_parallel_cross_entropy), three all-reduces of some eight an operator.
VOCAB_PARALLEL: Final = {Kind.EMBEDDING: 1.0, Kind.CROSS_ENTROPY: 3.0}
EXCHANGES: Final = frozenset({Kind.DISPATCH, Kind.COMBINE})


def host_launches(
    at: OnRank,
    peers: Array,
) -> tuple[Array, Array]:
    """(forward, backward) launches where each collective of *peers* waits for their
    last host."""
    operator, block, degrees, precision, machine = at
    framework = machine.framework
    waits = 1.0 + framework.host.wait * np.log2(peers)
    more: Any = 0.0
    factor: Any = 1.0
    if operator.kind is Kind.ATTENTION:
        single = falls_back(block, degrees, precision, machine)
        factor = 1.0 + SINGLE_KERNELS * single
    if operator.kind is Kind.GROUPED_MATMUL:
        factor = grouped_launches(at)
    elif number_of(operator, precision).bytes < SIXTEEN_BITS:
        more = framework.fp8.launch
    elif operator.kind in EXCHANGES or operator.function == "top-k":
        factor = framework.moe.issue
    if framework.kernels.loss_elements is not None:
        more = more + VOCAB_PARALLEL.get(operator.kind, 0.0) * (degrees.tp > 1)
    forward = operator.launches * waits * factor + more
    backward = operator.backward_launches * waits * factor + more
    return forward, np.asarray(backward)
