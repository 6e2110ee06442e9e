"""One layer by itself, priced: what a table of measured layers is held against."""

from __future__ import annotations

import numpy as np

from costmodel.layout.retention import preset
from costmodel.machine.assembly import Machine
from costmodel.operators.degrees import Degrees
from costmodel.operators.sharding import entry_bytes
from costmodel.stages.block_cost import Atom, atom, block_prices
from profiles.hardware.precisions import precision
from profiles.models.graph import Block


def layer_price(
    block: Block,
    on: Machine,
    number: str,
    *,
    seq_len: int,
    micro_batch: int = 1,
    tp: int = 1,
    recompute: str = "none",
    sequence_parallel: bool = False,
    flash_attention: bool = True,
) -> Atom:
    """One micro-batch through *block* on a rank of *on*, in the precision *number*.

    Raises UnknownName for another precision or preset of recompute.
    """
    degrees = Degrees(
        tp=np.asarray(tp),
        cp=np.asarray(1),
        micro_batch=np.asarray(micro_batch),
        seq_len=seq_len,
        sequence_parallel=sequence_parallel,
        flash_attention=flash_attention,
    )
    policy = precision(number)
    return atom(
        block,
        block_prices(block, degrees, policy, on),
        preset(recompute, block),
        entry_bytes(block, degrees, policy),
        stops_early=on.framework.stops_early,
        floor=on.framework.host.floor,
    )
