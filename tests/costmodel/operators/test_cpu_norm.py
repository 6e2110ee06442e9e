"""PyTorch composes RMSNorm on a CPU, and keeps what it composes it of."""

from __future__ import annotations

import numpy as np
import pytest

from costmodel.machine.assembly import Machine
from costmodel.operators.degrees import Degrees
from costmodel.operators.saved_tensors import internal
from costmodel.operators.work import OnRank
from profiles.hardware.precisions import precision
from profiles.models.graph import Block, Operator
from tests.support.problems import local, on
from tests.support.sampled import job

HERE = Degrees(
    tp=np.asarray(1),
    cp=np.asarray(1),
    micro_batch=np.asarray(2),
    seq_len=128,
    sequence_parallel=False,
)


def norms(name: str) -> list[tuple[Block, Operator]]:
    return [
        (block, one)
        for block in job(name).graph.distinct()
        for one in block.operators
        if one.function in ("rmsnorm", "layernorm")
    ]


def kept(name: str, where: Machine) -> list[float]:
    """Bytes that each norm keeps of its own making, over those of its output."""
    found = []
    for block, one in norms(name):
        made = internal(OnRank(one, block, HERE, precision("fp32"), where))
        whole = 2 * 128 * block.extents["hidden"] * 4
        found.append(float(sum(made.values())) / whole)
    return found


def test_a_cpus_rmsnorm_keeps_its_scaled_input() -> None:
    """`profile` sees 2.004 times the input: it, what is scaled, and a number a row."""
    assert kept("llama3-8b", local("cpu")) == pytest.approx([1.0] * 3)
    assert kept("llama3-8b", on("dgx-a100-80gb")) == [0.0] * 3
    assert kept("gpt-tiny", local("cpu")) == [0.0] * 3
