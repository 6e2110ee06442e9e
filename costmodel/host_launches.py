"""What the host issues of one operator, in launches of an ordinary operator."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from costmodel.attention_price import falls_back
from costmodel.expert_price import grouped_launches
from costmodel.machine import Machine
from costmodel.sharding import Degrees
from profiles.graph import Block
from profiles.operators import Kind, Operator
from profiles.precision import Precision

Array = NDArray[Any]

# What a softmax of single kernels adds: casts, scale, mask, softmax, dropout, each way
# [fitted by hand] vTrain's one-node runs at tp 8, micro-batch 1 against 2; not among
# the coefficients.
SINGLE_KERNELS: Final = 3.0
# What a vocabulary cut over tp ranks adds where the loss runs by single kernels
# [derived] from Megatron-LM: masking ids and rows some eight kernels, the loss some
# twenty (vocab_parallel_cross_entropy), three all-reduces of some eight an operator.
VOCAB_PARALLEL: Final = {Kind.EMBEDDING: 1.0, Kind.CROSS_ENTROPY: 3.0}


def host_launches(
    operator: Operator,
    block: Block,
    degrees: Degrees,
    precision: Precision,
    machine: Machine,
    peers: Array,
) -> tuple[Array, Array]:
    """(forward, backward) launches where each collective of *peers* waits for their
    last host."""
    software = machine.software
    waits = 1.0 + software.host_wait * np.log2(peers)
    more: Any = 0.0
    factor: Any = 1.0
    if operator.kind is Kind.ATTENTION:
        single = falls_back(block, degrees, precision, machine)
        factor = 1.0 + SINGLE_KERNELS * single
    if operator.kind is Kind.GROUPED_MATMUL:
        factor = grouped_launches(block, degrees, machine)
    if software.loss_elements is not None:
        more = VOCAB_PARALLEL.get(operator.kind, 0.0) * (degrees.tp > 1)
    forward = operator.launches * waits * factor + more
    backward = operator.backward_launches * waits * factor + more
    return forward, np.asarray(backward)
