"""8-bit operands that travel in 8 bits: what software that quantises first sends."""

from __future__ import annotations

import numpy as np
import pytest

from costmodel.machine.assembly import Machine, machine
from costmodel.machine.framework import load_framework
from costmodel.operators.degrees import Degrees
from costmodel.operators.operator_cost import operator_price
from costmodel.operators.work import OperatorPrice
from profiles.hardware.catalog import cluster
from profiles.hardware.precisions import precision
from tests.golden.priced import job_of

LARGE = 64  # sequences: latency does not count


def on(*, lean: bool) -> Machine:
    base = load_framework("megatron-lm").variant(fp8={"gathers": lean})
    return machine(cluster("dgx-h100"), base)


def price_of(
    name: str, where: Machine, *, tp: int = 8, sp: bool = True, number: str = "fp8"
) -> OperatorPrice:
    block = job_of("gpt-13b", 8).graph.block("layer")
    degrees = Degrees(
        tp=np.asarray(tp),
        cp=np.asarray(1),
        micro_batch=np.asarray(LARGE),
        seq_len=2048,
        sequence_parallel=sp,
    )
    return operator_price(
        block.operator(name), block, degrees, precision(number), where
    )


@pytest.mark.parametrize("name", ["qkv", "mlp_up"])
def test_a_gathered_input_takes_half(name: str) -> None:
    lean, plain = (price_of(name, on(lean=lean)).forward for lean in (True, False))
    assert lean.tensor_comm_s / plain.tensor_comm_s == pytest.approx(0.5, abs=0.02)
    assert lean.compute_s < plain.compute_s  # each rank quantises its own rows


@pytest.mark.parametrize("name", ["projection", "mlp_down"])
def test_a_gathered_gradient_takes_half_and_sums_stay_whole(name: str) -> None:
    lean, plain = (price_of(name, on(lean=lean)) for lean in (True, False))
    assert lean.forward.tensor_comm_s == plain.forward.tensor_comm_s
    ratio = lean.backward.tensor_comm_s / plain.backward.tensor_comm_s
    assert ratio == pytest.approx(0.5, abs=0.02)


@pytest.mark.parametrize(
    ("tp", "sp", "number"), [(1, False, "fp8"), (8, False, "fp8"), (8, True, "bf16")]
)
def test_nothing_changes_where_nothing_is_gathered_in_fewer_bits(
    tp: int, sp: bool, number: str
) -> None:
    lean, plain = (
        price_of("qkv", on(lean=lean), tp=tp, sp=sp, number=number)
        for lean in (True, False)
    )
    assert lean.forward == plain.forward
    assert lean.backward == plain.backward
