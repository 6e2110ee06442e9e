"""From one rule a dimension, Megatron's collectives."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from costmodel.layout.sharding_spec import Placement
from costmodel.operators.degrees import Degrees
from costmodel.operators.sharding import (
    backward_collectives,
    extent,
    forward_collectives,
    product_shape,
    redistribute,
)
from profiles.hardware.precisions import precision
from profiles.models.catalog import model
from profiles.models.decoder import decoder_graph
from profiles.models.graph import Block
from profiles.models.spec import DecoderSpec

S, TP = 2048, 4


def block_of(name: str, block: str = "layer") -> Block:
    spec = model(name).spec
    assert isinstance(spec, DecoderSpec)
    return decoder_graph(spec).block(block)


def degrees(*, sp: bool, tp: int = TP, cp: int = 1) -> Degrees:
    return Degrees(
        tp=np.asarray(tp),
        cp=np.asarray(cp),
        micro_batch=np.asarray(2),
        seq_len=S,
        sequence_parallel=sp,
    )


def counted(block: Block, *, sp: bool, backward: bool) -> Counter[str]:
    derive = backward_collectives if backward else forward_collectives
    found: Counter[str] = Counter()
    for operator in block.operators:
        for item in derive(operator, block, degrees(sp=sp), precision("bf16")):
            found[item.kind + (" hidden" if item.hidden else "")] += 1
            hidden = block.extents["hidden"]
            assert item.size_bytes == 2 * S * hidden * 2  # b·s·h in 16 bits
    return found


@pytest.mark.parametrize("name", ["gpt-13b", "llama3-8b"])
def test_two_all_reduces_a_layer_and_pass(name: str) -> None:
    block = block_of(name)
    assert counted(block, sp=False, backward=False) == {"all_reduce": 2}
    assert counted(block, sp=False, backward=True) == {"all_reduce": 2}


@pytest.mark.parametrize("name", ["gpt-13b", "llama3-8b"])
def test_sequence_parallelism_gathers_and_scatters(name: str) -> None:
    block = block_of(name)
    forward = {"all_gather": 2, "reduce_scatter": 2}
    assert counted(block, sp=True, backward=False) == forward
    backward = {**forward, "all_gather hidden": 2}  # inputs again, for their weights
    assert counted(block, sp=True, backward=True) == backward


def test_embedding_sums_its_vocabulary_shards() -> None:
    block = block_of("gpt-13b", "embedding")
    assert counted(block, sp=False, backward=False) == {"all_reduce": 1}
    assert counted(block, sp=True, backward=False) == {"reduce_scatter": 1}


def test_local_shapes() -> None:
    block = block_of("gpt-13b")
    m, n, k = product_shape(block.operator("qkv"), block, degrees(sp=True, cp=2))
    assert (int(m), int(n), int(k)) == (2 * S // 2, 3 * 5120 // TP, 5120)
    m, n, k = product_shape(block.operator("mlp_down"), block, degrees(sp=False))
    assert (int(m), int(n), int(k)) == (2 * S, 5120, 4 * 5120 // TP)


def test_key_value_heads_are_replicated_beyond_their_number() -> None:
    block = block_of("llama3-8b")  # 8 key-value heads of 128
    widths = [
        int(extent("key_value", block, degrees(sp=False, tp=tp))) for tp in (4, 8, 16)
    ]
    assert widths == [2 * 2 * 128, 2 * 128, 2 * 128]


def test_what_is_free_and_what_is_not() -> None:
    free = [
        (have, want)
        for have in Placement
        for want in Placement
        if redistribute(have, want) is None
    ]
    assert all(
        have is want or have is Placement.WHOLE or want is Placement.PARTIAL
        for have, want in free
    )
    assert redistribute(Placement.SEQUENCE, Placement.WIDTH) == "all_to_all"
