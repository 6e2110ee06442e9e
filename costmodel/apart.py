"""How far apart a block's messages are: the compute that lies between two of them.

On a CPU what carries a message takes turns with what the other rank computes next, up
to a slice of the scheduler: a message costs the more, the longer that is
(`profiles.measure.clock`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from costmodel.context_exchange import messages
from costmodel.degrees import Degrees
from costmodel.sharding import backward_collectives, forward_collectives
from costmodel.work import OperatorPrice
from profiles.graph import Block
from profiles.operators import Kind
from profiles.precision import Precision

Array = NDArray[Any]


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
        if operator.kind is Kind.ATTENTION:
            times = sum(
                one.times
                for direction in ("forward", "backward")
                for one in messages(direction, block, degrees, precision)
            )
            count = count + (degrees.cp > 1) * times
    several = np.maximum(count, 1)
    return np.where(count > 0, computed / several, np.inf)
