"""A vocabulary cut over ranks takes the host more kernels, where each runs alone."""

from __future__ import annotations

import numpy as np
import pytest

from costmodel.machine.assembly import machine
from costmodel.machine.framework import load_framework
from costmodel.operators.degrees import Degrees
from costmodel.operators.host_overhead import VOCAB_PARALLEL
from costmodel.operators.operator_cost import operator_price
from profiles.hardware.catalog import cluster
from profiles.hardware.precisions import precision
from profiles.models.graph import Kind
from tests.support.blocks import block_of

PLACES = {Kind.EMBEDDING: "embedding", Kind.CROSS_ENTROPY: "head"}


def launches(kind: Kind, tp: int, *, fused: bool) -> float:
    """Forward host seconds over those of one operator, without waiting for ranks."""
    used = load_framework("megatron-lm").variant(host={"wait": 0.0})
    if fused:
        used = used.variant(kernels={"loss_elements": None})
    block = block_of("gpt-13b", PLACES[kind])
    operator = next(one for one in block.operators if one.kind is kind)
    degrees = Degrees(
        tp=np.asarray(tp),
        cp=np.asarray(1),
        micro_batch=np.asarray(1),
        seq_len=1024,
        sequence_parallel=False,
        flash_attention=False,
    )
    on = machine(cluster("dgx-a100-80gb"), used)
    price = operator_price(operator, block, degrees, precision("bf16"), on)
    return float(price.forward.host_s / on.framework.host.forward_s)


@pytest.mark.parametrize("kind", list(PLACES))
def test_cut_vocabularies_take_more_launches(kind: Kind) -> None:
    alone = launches(kind, 1, fused=False)
    assert launches(kind, 4, fused=False) == pytest.approx(alone + VOCAB_PARALLEL[kind])
    assert launches(kind, 4, fused=True) == launches(kind, 1, fused=True) == alone
