"""A plain MLP as operators: what it computes, keeps and sends."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.plain_mlp import plain_mlp
from costmodel.machine.assembly import machine
from costmodel.operators.degrees import Degrees
from costmodel.operators.sharding import backward_collectives, forward_collectives
from costmodel.stages.block_cost import block_prices
from profiles.hardware.catalog import cluster
from profiles.hardware.precisions import precision

ROWS, WIDTH = 16, 64
FP32 = precision("fp32")


def degrees(tp: int) -> Degrees:
    return Degrees(
        tp=np.asarray(tp),
        cp=np.asarray(1),
        micro_batch=np.asarray(ROWS),
        seq_len=1,
        sequence_parallel=False,
    )


@pytest.mark.parametrize("tp", [1, 2, 4])
def test_products_are_split_and_count(tp: int) -> None:
    block = plain_mlp(WIDTH, 4, "relu")
    block.graph  # noqa: B018 - raises where an operator reads what nobody makes
    prices = block_prices(block, degrees(tp), FP32, machine(cluster("dgx-h100")))
    products = [prices[f"product_{number}"] for number in range(4)]
    flops = sum(float(one.forward.flops) for one in products)
    assert flops == 4 * 2 * ROWS * WIDTH**2 / tp
    biases = 2 * WIDTH / tp + 2 * WIDTH  # of rows, whole on every rank
    found = sum(float(one.parameters) for one in products)
    assert found == 4 * WIDTH**2 / tp + biases


def test_two_products_are_summed_once_each_way() -> None:
    block = plain_mlp(WIDTH, 4, "relu")
    for rule in (forward_collectives, backward_collectives):
        sent = [
            (operator.name, one.kind, float(one.size_bytes))
            for operator in block.operators
            for one in rule(operator, block, degrees(2), FP32)
        ]
        assert [what for _, *what in sent] == 2 * [["all_reduce", ROWS * WIDTH * 4.0]]
        first = 1 if rule is forward_collectives else 0
        assert [name for name, *_ in sent] == [
            f"product_{number}" for number in (first, first + 2)
        ]


def test_the_last_product_may_have_no_function() -> None:
    names = [one.name for one in plain_mlp(WIDTH, 3, "relu", last=False).operators]
    assert names == ["product_0", "relu_0", "product_1", "relu_1", "product_2"]
