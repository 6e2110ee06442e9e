"""Products in TF32 on Hopper, whose warpgroup instructions turn no 32-bit operand."""

from __future__ import annotations

import numpy as np
import pytest

from costmodel.machine.assembly import machine
from costmodel.machine.framework import load_framework
from costmodel.operators.degrees import Degrees
from costmodel.operators.operator_cost import TURNED_TF32, operator_price
from profiles.hardware.catalog import cluster
from profiles.hardware.precisions import precision
from tests.golden.priced import job_of


def passes_s(where: str, number: str) -> tuple[float, float]:
    """(forward, backward) seconds of a square product."""
    block = job_of("gpt-13b", 8).graph.block("layer")
    degrees = Degrees(
        tp=np.asarray(1),
        cp=np.asarray(1),
        micro_batch=np.asarray(64),
        seq_len=2048,
        sequence_parallel=False,
    )
    on = machine(cluster(where), load_framework("maxtext"))
    found = operator_price(
        block.operator("projection"), block, degrees, precision(number), on
    )
    return float(found.forward.compute_s), float(found.backward.compute_s)


@pytest.mark.parametrize(
    ("where", "number", "slower"),
    [
        ("dgx-h100", "tf32", TURNED_TF32),
        ("dgx-h100", "bf16", 1.0),
        ("dgx-a100-80gb", "tf32", 1.0),
        ("dgx-b200", "tf32", 1.0),
    ],
)
def test_backward_of_tf32_on_hopper_runs_as_on_ampere(
    where: str, number: str, slower: float
) -> None:
    """Forward alone has both operands contiguous along k."""
    forward_s, backward_s = passes_s(where, number)
    assert backward_s / (2 * forward_s) == pytest.approx(slower, rel=0.03)
