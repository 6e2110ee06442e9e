"""8-bit weights that are made once a step, not for every micro-batch."""

from __future__ import annotations

import numpy as np
import pytest

from costmodel.machine.assembly import Machine, machine
from costmodel.machine.framework import load_framework
from costmodel.operators.degrees import Degrees
from costmodel.operators.operator_cost import operator_price
from costmodel.operators.work import OperatorPrice
from costmodel.stages.optimizer_step import cast_bytes
from profiles.hardware.catalog import cluster
from profiles.hardware.precisions import precision
from tests.golden.priced import job_of


def on(*, once: bool) -> Machine:
    base = load_framework("megatron-lm").variant(fp8={"casts_weights_once": once})
    return machine(cluster("dgx-h100"), base)


def price_of(where: Machine, micro_batch: int, number: str) -> OperatorPrice:
    block = job_of("gpt-13b", 8).graph.block("layer")
    degrees = Degrees(
        tp=np.asarray(1),
        cp=np.asarray(1),
        micro_batch=np.asarray(micro_batch),
        seq_len=2048,
        sequence_parallel=False,
    )
    return operator_price(
        block.operator("mlp_up"), block, degrees, precision(number), where
    )


def saved_s(micro_batch: int, number: str) -> float:
    """What a forward takes less where its weight is there already."""
    each, once = (
        price_of(on(once=once), micro_batch, number).forward.compute_s
        for once in (False, True)
    )
    return float(each - once)


def test_a_micro_batch_does_not_pay_for_its_weight() -> None:
    assert saved_s(1, "fp8") > 0
    assert saved_s(8, "fp8") == pytest.approx(saved_s(1, "fp8"))


def test_sixteen_bit_weights_are_not_cast() -> None:
    assert saved_s(1, "bf16") == 0
    assert cast_bytes(np.asarray(1e9), precision("bf16"), on(once=True)) == 0


def test_a_step_pays_for_all_weights() -> None:
    where = on(once=True)
    moved = cast_bytes(np.asarray(1e9), precision("fp8"), where)
    assert moved == 1e9 * where.framework.fp8.quantise_bytes
    assert cast_bytes(np.asarray(1e9), precision("fp8"), on(once=False)) == 0
