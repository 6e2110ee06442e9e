"""Rotary turns and gated activations as PyTorch's single kernels."""

from __future__ import annotations

import numpy as np
import pytest

from costmodel.machine.assembly import machine
from costmodel.machine.framework import load_framework
from costmodel.operators.degrees import Degrees
from costmodel.operators.operator_cost import operator_price
from costmodel.operators.work import OperatorPrice
from profiles.hardware.catalog import cluster
from profiles.hardware.precisions import precision
from tests.golden.priced import job_of

LARGE = 64  # sequences: launches do not matter


def price_of(name: str, model: str, *, eager: bool) -> OperatorPrice:
    base = load_framework("megatron-core").variant(kernels={"eager": eager})
    block = job_of(model, LARGE).graph.block("layer")
    degrees = Degrees(
        tp=np.asarray(1),
        cp=np.asarray(1),
        micro_batch=np.asarray(LARGE),
        seq_len=2048,
        sequence_parallel=False,
    )
    where = machine(cluster("dgx-h100"), base)
    return operator_price(
        block.operator(name), block, degrees, precision("bf16"), where
    )


def times(name: str, model: str) -> tuple[float, float]:
    """How many times as long either pass takes."""
    one, fused = (price_of(name, model, eager=eager) for eager in (True, False))
    return (
        float(one.forward.compute_s / fused.forward.compute_s),
        float(one.backward.compute_s / fused.backward.compute_s),
    )


def test_single_kernels_write_what_fused_ones_keep() -> None:
    assert times("activation", "llama-7b") == pytest.approx((5 / 3, 9 / 5), rel=0.01)


def test_values_are_not_turned() -> None:
    """Of as many queries, keys and values two thirds are."""
    found = times("rotary", "llama-7b")
    assert found == pytest.approx((10 / 2 * 2 / 3, 12 / 2 * 2 / 3), rel=0.01)


def test_a_plain_activation_is_one_kernel_anyway() -> None:
    assert times("activation", "gpt-13b") == (1.0, 1.0)
