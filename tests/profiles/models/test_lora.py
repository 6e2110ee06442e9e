"""The graph of a model with low-rank adapters."""

from __future__ import annotations

import pytest

from profiles.errors import InvalidSpec
from profiles.models.catalog import model
from profiles.models.graph import Kind
from profiles.models.job import Job
from profiles.models.lora import ATTENTION, Adapters

MODEL = model("llama2-7b")


def job(adapters: Adapters | None) -> Job:
    return Job(
        model=MODEL.name,
        spec=MODEL.spec,
        seq_len=4096,
        global_batch=32,
        adapters=adapters,
    )


def test_all_but_the_adapters_is_frozen() -> None:
    graph = job(Adapters(rank=16)).graph
    for block in graph.distinct():
        for item in block.operators:
            assert item.frozen is ("_lora_" not in item.name)
    names = [item.name for item in graph.block("layer").operators]
    at = names.index("mlp_up")
    beside = ["mlp_up_lora_a", "mlp_up_lora_b", "mlp_up_lora_sum"]
    assert names[at : at + 4] == ["mlp_up", *beside]
    assert graph.layer_names == job(None).graph.layer_names


def test_each_layer_still_hands_on_what_the_next_reads() -> None:
    plain = job(None).graph.block("layer")
    block = job(Adapters(rank=16)).graph.block("layer")
    assert block.operators[-1].output == plain.operators[-1].output
    order = block.graph  # raises where nobody makes what is read
    assert order.has_edge("qkv_lora_sum", "rotary")
    assert not order.has_edge("qkv", "rotary")


def test_only_targets_are_adapted() -> None:
    block = job(Adapters(rank=8, targets=ATTENTION)).graph.block("layer")
    adapted = {one.name for one in block.operators if one.name.endswith("_lora_a")}
    assert adapted == {"qkv_lora_a", "projection_lora_a"}


def test_a_frozen_product_keeps_nothing_but_its_adapter_keeps_its_input() -> None:
    block = job(Adapters(rank=8)).graph.block("layer")
    for item in block.operators:
        if item.kind is Kind.MATMUL and item.frozen:
            assert item.saves == ()
            beside = block.operator(f"{item.name}_lora_a")
            assert beside.saves == item.inputs[:1]


def test_a_target_that_is_not_there_is_named() -> None:
    with pytest.raises(InvalidSpec, match=r"no matrix product 'q_proj'.*qkv"):
        job(Adapters(rank=8, targets=("q_proj",))).graph.distinct()
    with pytest.raises(InvalidSpec, match="rank of at least 1"):
        Adapters(rank=0)
