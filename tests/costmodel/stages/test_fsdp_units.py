"""`costmodel.stages.optimizer_step`: what ZeRO does in a unit is counted as it runs."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from costmodel.machine.assembly import Machine, machine
from costmodel.stages.data_parallelism import DataParallel
from costmodel.stages.optimizer_step import (
    GATHER,
    PASS,
    REDUCE,
    accumulated,
    measures_units,
    unit_work,
)
from profiles.hardware.precisions import precision
from profiles.samples.table import Samples
from tests.support.sampled import job, local, on, operator_key, sample, samples

RANKS, UNITS, SIZE = 2, 4, 2**16  # parameters of a unit
SECONDS = {PASS: 1.0, REDUCE: 3.0, GATHER: 10.0}
FP32, BF16 = precision("fp32"), precision("bf16")


def known() -> Machine:
    """Each kind takes its seconds at SIZE, and twice as long at twice the size."""
    few = samples(job(), RANKS)
    operators = {
        operator_key(kind, "forward", (SIZE * twice,), RANKS): sample(seconds * twice)
        for kind, seconds in SECONDS.items()
        for twice in (1, 2)
    }
    others = {key: one for key, one in few.operators.items() if key.kind not in SECONDS}
    found = Samples(
        operators={**others, **operators},
        collectives=few.collectives,
        machine=few.machine,
        cluster=few.cluster,
    )
    return machine(local(RANKS), samples=found).running(RANKS)


def parallel(zero: int, dp: int = RANKS) -> DataParallel:
    one = np.asarray(1)
    return DataParallel(
        tp=one,
        cp=one,
        dp=np.asarray(dp),
        zero=np.asarray(zero),
        zero_group=np.asarray(dp),
    )


# Hooks and sums of a backward, gathers of either pass, the step's end.
@pytest.mark.parametrize(
    ("zero", "forward", "backward", "step"),
    [(0, 0, 0, 0), (1, 0, 1, 2 + 10), (2, 0, 3, 10), (3, 10, 3 + 10, 0)],
)
def test_each_level_does_what_it_does_as_often(
    zero: int, forward: float, backward: float, step: float
) -> None:
    found = unit_work(
        np.asarray(float(UNITS * SIZE)), parallel(zero), FP32, known(), units=UNITS
    )
    seconds = [
        float(one.seconds) / UNITS
        for one in (found.forward, found.backward, found.step)
    ]
    assert seconds == pytest.approx([forward, backward, step])


def test_one_rank_shards_nothing() -> None:
    found = unit_work(
        np.asarray(float(SIZE)), parallel(3, dp=1), FP32, known(), units=1
    )
    assert float(found.of_micro_batch.seconds) == float(found.step.seconds) == 0.0


def test_weights_in_16_bits_are_half_the_copy() -> None:
    found = unit_work(np.asarray(2.0 * SIZE), parallel(3), BF16, known(), units=1)
    assert float(found.forward.seconds) == pytest.approx(SECONDS[GATHER])


def test_copies_count_once() -> None:
    """With samples they are in those of the units, without in the bytes."""
    count, bare = np.asarray(float(SIZE)), local(RANKS)
    without = machine(bare)
    assert not measures_units(without)
    assert measures_units(on(ranks=RANKS))
    assert float(accumulated(count, parallel(3), FP32, without).seconds) > 0.0
    assert float(accumulated(count, parallel(3), FP32, known()).seconds) == 0.0


def test_blocks_are_made_beside_what_was_measured() -> None:
    """Of ZeRO++ there are no samples: bytes, on top of what there are samples of."""
    count = np.asarray(float(UNITS * SIZE))
    plain = unit_work(count, parallel(3), FP32, known(), units=UNITS)
    chosen = replace(parallel(3), quantized_weights=True, hpz_partition_size=RANKS)
    found = unit_work(count, chosen, FP32, known(), units=UNITS)
    assert float(found.forward.seconds) > float(plain.forward.seconds)
    assert float(found.forward.measured_s) == float(plain.forward.measured_s)
    assert float(found.backward.seconds) == float(plain.backward.seconds)
