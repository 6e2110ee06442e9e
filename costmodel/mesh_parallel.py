"""Data parallelism as a stage's mesh has it, for one stage or as arrays of many."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from costmodel.data_parallel import DataParallel
from costmodel.layout import Mesh, Stage
from costmodel.zero_plus import PLAIN, ZeroPlus
from profiles.errors import Unsupported

Array = NDArray[Any]
# tp, cp, micro-batch, ep, etp: what the prices of a block's operators hang on
Place = tuple[int, int, int, int, int]


def place_of(mesh: Mesh, micro_batch: int) -> Place:
    """Where a stage's blocks are, with so many sequences at once."""
    return mesh.tp, mesh.cp, micro_batch, mesh.ep, mesh.etp


def data_parallel(mesh: Mesh, zero: int, pp: int = 1) -> DataParallel:
    """The data-parallel side of a stage's mesh, one of *pp* ranks', without ZeRO++."""
    row = (*degrees_of(mesh)[:5], zero, mesh.dp_shard, pp, 1, 1, *_row(PLAIN))
    return parallel_of(np.array(row))


def degrees_of_stage(
    stage: Stage, pp: int, plus: ZeroPlus, *, together: bool = True
) -> tuple[int, ...]:
    """What `parallel_of` takes, of a stage and all of its copies; *together* where all
    of them lie in one fast domain."""
    copies = len(stage.held_by)
    tp, cp, dp, ep, etp, group = degrees_of(stage.mesh)
    apart = 1 if together else copies
    zero, ranks = one_zero(stage), -(-pp // copies)
    row = (tp, cp, dp * copies, ep, etp, zero, group, ranks, apart, copies)
    return (*row, *_row(plus))


def _row(plus: ZeroPlus) -> tuple[int, ...]:
    size = plus.hpz_partition_size
    return int(plus.quantized_weights), size, int(plus.quantized_gradients)


def parallel_of(columns: Array) -> DataParallel:
    """The same of rows, of what `degrees_of_stage` gives."""
    *degrees, weights, size, gradients = map(np.asarray, columns)
    tp, cp, dp, ep, etp, zero, group, pp, apart, copies = degrees
    return DataParallel(
        tp=tp,
        cp=cp,
        dp=dp,
        ep=ep,
        etp=etp,
        zero=zero,
        zero_group=group,
        pp=pp,
        apart=apart,
        copies=copies,
        quantized_weights=weights,
        hpz_partition_size=size,
        quantized_gradients=gradients,
    )


def degrees_of(mesh: Mesh) -> tuple[int, ...]:
    """tp, cp, dp, ep, etp and the ranks of a shard group."""
    return mesh.tp, mesh.cp, mesh.dp, mesh.ep, mesh.etp, mesh.dp_shard


def one_zero(stage: Stage) -> int:
    """The ZeRO level of a stage's layers; raises Unsupported for several."""
    levels = {plan.zero for plan in stage.plans}
    if len(levels) > 1:
        raise Unsupported(
            f"layers of one stage with ZeRO levels {sorted(levels)} are not priced "
            "yet; give all layers of a stage one level"
        )
    return levels.pop()
