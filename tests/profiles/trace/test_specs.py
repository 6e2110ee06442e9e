"""A family's spec and the trace of the same model say the same."""

from __future__ import annotations

import pytest

from costmodel.simulation.flops import model_flops
from profiles import load_model
from profiles.models import Element, Job
from profiles.models.param_count import graph_parameters
from tests.support.measured_module import HUGGING_FACE, OWN, needs_transformers

BYTES = {Element.ACTIVATION: 2, Element.FP32: 4, Element.MASK: 1}
APART = 0.02


def saved_bytes(job: Job) -> float:
    """What layers keep for backward of one sample in 16 bits, by the graph alone."""
    total = 0.0
    for block, count in job.graph.blocks:
        kept = {
            one.name: block.elements(one) * BYTES[one.element]
            for operator in block.operators
            for one in operator.saves
        }
        total += count * sum(kept.values())
    return total * job.seq_len


def _require_alike(
    traced: str, name: str, seq_len: int | None = None, bytes_apart: float = APART
) -> None:
    found = load_model(traced, seq_len=seq_len).job(global_batch=1)
    spec = load_model(name).job(global_batch=1, seq_len=seq_len)
    assert model_flops(found) == pytest.approx(model_flops(spec), rel=APART)
    counted = [graph_parameters(one.graph).trained for one in (found, spec)]
    assert counted[0] == pytest.approx(counted[1], rel=APART)
    assert saved_bytes(found) == pytest.approx(saved_bytes(spec), rel=bytes_apart)


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
    """Bytes within 5 %: the trace's layers begin with the way up, whose input the layer
    before keeps too, and it does not count labels."""
    _require_alike(f"tests.support.convolutional:{traced}", name, bytes_apart=0.05)


@needs_transformers
@pytest.mark.parametrize(
    ("traced", "name", "seq_len"),
    [
        ("vit_base", "vit-base", None),
        ("bert_base", "bert-base", 512),
        ("gpt_125m", "gpt-125m", 2048),
    ],
)
def test_transformers(traced: str, name: str, seq_len: int | None) -> None:
    _require_alike(f"{HUGGING_FACE}:{traced}", name, seq_len)
