"""8- and 4-bit operands: bytes that making them moves, and of experts what is made."""

from __future__ import annotations

import numpy as np
import pytest

from costmodel.machine.assembly import Machine, machine
from costmodel.machine.framework import load_framework
from costmodel.operators.degrees import Degrees, routed_rows
from costmodel.operators.low_precision import quantise_bytes
from costmodel.operators.operator_cost import operator_price
from costmodel.operators.work import OperatorPrice
from profiles.hardware.catalog import cluster
from profiles.hardware.precisions import Format, precision
from profiles.models.graph import Block
from tests.golden.priced import job_of, priced

ONE = np.asarray(1)
DEGREES = Degrees(
    tp=ONE,
    cp=ONE,
    micro_batch=np.asarray(4),
    seq_len=4096,
    sequence_parallel=False,
    ep=np.asarray(8),
)


def on(*, moved: float = 4.0, once: bool = True) -> Machine:
    fp8 = {"quantise_bytes": moved, "casts_weights_once": once}
    base = load_framework("megatron-core").variant(fp8=fp8)
    return machine(cluster("dgx-b200"), base)


def experts() -> Block:
    return next(pair[0] for pair in job_of("qwen3-30b-a3b", 32).graph.runs)


def price_of(name: str, where: Machine, number: str = "mxfp8") -> OperatorPrice:
    block = experts()
    return operator_price(
        block.operator(name), block, DEGREES, precision(number), where
    )


@pytest.mark.parametrize(
    ("number", "moved"),
    [
        (Format.FP8, 2 + 1 + 1),
        (Format.MXFP8, 2 + 2 * (1 + 1 / 32)),  # a scale for 32 numbers
        (Format.NVFP4, 2 + 2 + 2 * (0.5 + 1 / 16)),  # and one for the tensor
    ],
)
def test_an_operand_is_read_and_written_for_both_directions(
    number: Format, moved: float
) -> None:
    where = on()
    assert quantise_bytes(number, where) - quantise_bytes(Format.FP8, on()) == (
        pytest.approx(moved - 4)
    )


@pytest.mark.parametrize(("name", "width"), [("mlp_up", 2048), ("mlp_down", 768)])
def test_rows_of_experts_are_quantised_as_they_come(name: str, width: int) -> None:
    """Of 8 experts a token 131,072 rows: one byte an element more takes as long as
    these bytes at the bandwidth of memory."""
    more, less = (price_of(name, on(moved=moved)).forward for moved in (5.0, 4.0))
    rows = float(routed_rows(experts(), DEGREES))
    assert rows == 4 * 4096 * 8
    where = on()
    bandwidth = where.rates.traffic.fraction * where.device.memory_bytes_per_s
    share = where.framework.fp8.quantise_bytes / 4.0  # the coefficient of bytes
    taken = float(more.compute_s - less.compute_s)
    assert taken == pytest.approx(rows * width * share / bandwidth, rel=1e-6)


def test_weights_of_experts_are_quantised_for_each_micro_batch_or_once() -> None:
    once, again = (price_of("mlp_up", on(once=once)).forward for once in (True, False))
    assert again.compute_s > once.compute_s


def test_16_bit_operands_are_made_of_nothing() -> None:
    more, less = (price_of("mlp_up", on(moved=m), "bf16") for m in (9.0, 4.0))
    assert more.forward == less.forward
    assert more.backward == less.backward


def test_s2fp8_reads_operands_twice_more_and_wang_keeps_no_master() -> None:
    """S2FP8: a mean and a maximum a tensor; Wang: 2 bytes of a weight, not 6."""
    job = job_of("gpt-1.3b", 8)
    where = machine(cluster("dgx-h100"), load_framework("megatron-core"))
    plain, shifted, wang = (
        priced(job, where, micro_batch=8, precision=name)
        for name in ("fp8", "fp8-s2", "fp8-wang")
    )
    assert shifted.step_time_s > plain.step_time_s
    assert shifted.memory[0].total == plain.memory[0].total
    states = plain.memory[0].optimizer + plain.memory[0].parameters
    fewer = states - wang.memory[0].optimizer - wang.memory[0].parameters
    weights = plain.memory[0].parameters / precision("fp8").parameter.bytes
    assert fewer == pytest.approx(4 * weights, rel=1e-6)
    assert quantise_bytes(Format.FP8, where, shifted=True) == 4 + quantise_bytes(
        Format.FP8, where
    )
