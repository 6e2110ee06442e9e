"""A family's spec and the trace of the same model say the same.

Like is compared with like: the spec is asked for eager kernels, as they run on a CPU in
32 bits. Of RMSNorm these keep the scaled input too, of a gated MLP the gate.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from costmodel.machine import Machine, machine
from costmodel.operators.degrees import Degrees
from costmodel.operators.saved_tensors import handed_on, internal
from costmodel.operators.work import OnRank
from costmodel.simulation.flops import model_flops
from profiles import load_cluster, load_model
from profiles.hardware.precisions import precision
from profiles.models import Block, Job
from profiles.models.param_count import graph_parameters
from tests.support.measured_module import HUGGING_FACE, OWN, needs_transformers

APART = 0.02
# What PyTorch copies for a kernel that adds a bias to scores, and for a view of what
# that kernel gives: no other one needs them.
OF_BIASES = (".contiguous", ".zeros")


def eager() -> Machine:
    """A CPU, with the kernels of code that fuses nothing."""
    on = machine(load_cluster("cpu"))
    return replace(on, framework=on.framework.variant(footprint={"keeps_gate": True}))


def saved_bytes(job: Job) -> float:
    """What layers keep for backward of one sample."""
    on, one = eager(), np.ones((), dtype=int)
    degrees = Degrees(
        tp=one, cp=one, micro_batch=one, seq_len=job.seq_len, sequence_parallel=False
    )

    def kept(block: Block) -> float:
        found: dict[str, Any] = {}
        for operator in block.operators:
            at = OnRank(operator, block, degrees, precision("fp32"), on)
            found |= handed_on(at) | internal(at)
        names = (name for name in found if not any(one in name for one in OF_BIASES))
        return float(sum(found[name] for name in names))

    return sum(count * kept(block) for block, count in job.graph.blocks)


def _require_alike(traced: str, name: str, seq_len: int | None = None) -> None:
    found = load_model(traced, seq_len=seq_len).job(global_batch=1)
    spec = load_model(name).job(global_batch=1, seq_len=seq_len)
    assert model_flops(found) == pytest.approx(model_flops(spec), rel=APART)
    counted = [graph_parameters(one.graph).trained for one in (found, spec)]
    assert counted[0] == pytest.approx(counted[1], rel=APART)
    assert saved_bytes(found) == pytest.approx(saved_bytes(spec), rel=APART)


@pytest.mark.parametrize(
    ("traced", "name"),
    [("resnet_50", "resnet-50"), ("wide_resnet_50", "wide-resnet-50-2")],
)
def test_residual_networks(traced: str, name: str) -> None:
    _require_alike(f"{OWN}:{traced}", name)


@pytest.mark.parametrize(
    ("traced", "name"), [("unet_2d", "unet-2d"), ("unet_3d", "unet-3d")]
)
def test_networks_with_skips(traced: str, name: str) -> None:
    _require_alike(f"tests.support.convolutional:{traced}", name)


@needs_transformers
@pytest.mark.parametrize(
    ("traced", "name", "seq_len"),
    [
        ("vit_base", "vit-base", None),
        ("bert_base", "bert-base", 512),
        ("gpt_125m", "gpt-125m", 2048),
        ("llama_1b", "llama3.2-1b", 512),
        ("t5_small", "t5-small", 512),
    ],
)
def test_transformers(traced: str, name: str, seq_len: int | None) -> None:
    _require_alike(f"{HUGGING_FACE}:{traced}", name, seq_len)
