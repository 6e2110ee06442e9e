"""What the host of `execute` needs for experts and for 8-bit operands."""

from __future__ import annotations

import numpy as np

from benchmarks.fit.layer_price import layer_price
from costmodel.machine.assembly import Machine, machine
from costmodel.machine.framework import load_framework
from costmodel.operators.degrees import Degrees
from costmodel.stages.block_cost import Whole, block_prices
from profiles.hardware.catalog import cluster
from profiles.hardware.precisions import precision
from profiles.models.catalog import model


def on(framework: str) -> Machine:
    return machine(cluster("dgx-h100"), load_framework(framework))


def waited_s(framework: str) -> list[float]:
    """Of Mixtral's layer without and with expert parallelism."""
    graph = model("mixtral-8x7b").job(seq_len=4096, global_batch=1).graph
    block = graph.block("expert-layer")
    degrees = Degrees(
        tp=np.asarray(1),
        cp=np.asarray(1),
        micro_batch=np.asarray(1),
        seq_len=4096,
        ep=np.asarray([1, 2]),
        sequence_parallel=False,
    )
    prices = block_prices(block, degrees, precision("bf16"), on(framework))
    return list(np.broadcast_to(Whole.of(prices).waited_s, 2))


def test_only_rows_that_travel_make_the_host_wait() -> None:
    alone, exchanged = waited_s("meshwright")
    assert alone == 0.0 < exchanged
    assert min(waited_s("megatron-core")) > 0.0


def test_small_products_of_8_bits_are_bound_by_the_host() -> None:
    block = model("gpt-125m").job(seq_len=512, global_batch=1).graph.block("layer")
    seconds = {
        number: layer_price(block, on("meshwright"), number, seq_len=512).forward_s
        for number in ("bf16", "fp8")
    }
    assert seconds["fp8"] > 1.5 * seconds["bf16"]
