"""Stages finer than a layer: embedding and head may be stages of their own."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from costmodel.batched.pricing import price
from costmodel.layout.strategy import Columns, Uniform, spell_out, split_layers
from costmodel.machine.assembly import machine
from costmodel.machine.framework import load_framework
from costmodel.simulation.estimator import estimate
from costmodel.simulation.flops import model_flops
from costmodel.support.legality import violations
from profiles.hardware.catalog import cluster
from profiles.models.catalog import model
from profiles.models.graph import PRODUCTS
from profiles.models.job import Job
from profiles.models.spec import DecoderSpec
from tests.oracles.bounds import step_time_bound_s

CLUSTER = cluster("dgx-h100")
ON = machine(CLUSTER, load_framework("megatron-core"))
SMALL = DecoderSpec(
    layers=6,
    hidden=512,
    heads=8,
    kv_heads=8,
    head_dim=64,
    ffn_hidden=2048,
    vocab=32000,
    max_positions=1024,
)


def asked(layers: int) -> Job:
    spec = replace(SMALL, layers=layers)
    return Job(model="small", spec=spec, seq_len=1024, global_batch=32)


@given(body=st.integers(1, 60))
def test_as_many_stages_as_layers_and_ends(body: int) -> None:
    """Megatron's --account-for-embedding- and --account-for-loss-in-pipeline-split:
    62 layers in 64 stages."""
    assert split_layers(body, body + 2) == (0, *[1] * body, 0)
    assert split_layers(body, body + 1) == (*[1] * body, 0)
    assert sum(split_layers(body, body)) == body


@given(layers=st.integers(2, 14), more=st.integers(0, 2), dp=st.sampled_from((1, 2)))
def test_stages_of_an_end_alone_are_priced(layers: int, more: int, dp: int) -> None:
    job, choice = asked(layers), Uniform(pp=layers + more, dp=dp)
    assert list(violations(choice, job, CLUSTER)) == []
    layout = spell_out(choice, job.graph, job.global_batch)
    names = [name for stage in layout.stages for name in stage.layers]
    assert names == list(job.graph.layer_names)
    if more:
        assert layout.stages[-1].layers == ("final_norm", "head")
    if more == 2:
        assert layout.stages[0].layers == ("embedding",)
    found = estimate(job, CLUSTER, layout, on=ON)
    column = price(Columns.of([choice]), job, ON)
    bound_s = step_time_bound_s(job, layout, ON)
    assert float(column.step_time_s[0]) == pytest.approx(bound_s, rel=1e-12)
    assert bound_s <= found.step_time_s * (1 + 1e-12)
    held = np.array([float(item.parameters) for item in found.memory])
    whole = estimate(job, CLUSTER, spell_out(Uniform(dp=dp), job.graph, 32), on=ON)
    table = 32000 * 512 * 2  # tied: the first and the last stage have a copy each
    assert held.sum() - table == pytest.approx(float(whole.memory[0].parameters))


def test_more_stages_than_layers_and_ends_are_refused() -> None:
    (reason,) = violations(Uniform(pp=9), asked(6), CLUSTER)
    assert "more than the 6 layers, embedding and head: at most 8" in reason


def test_a_further_token_costs_a_layer_a_product_and_a_head() -> None:
    """DeepSeek-V3: its module is a layer, 2h to h, and the shared head once more; its
    parameters are trained, those of table and head are the model's."""
    found = model("deepseek-v3")
    spec = found.spec
    assert isinstance(spec, DecoderSpec)
    one = found.job()
    none = replace(one, spec=replace(spec, multi_token_heads=0))
    layer = one.graph.block("expert-layer")
    width = layer.extents
    products = sum(
        2
        * sum(width[name] for name in item.columns)
        * width[item.contracted or ""]
        * (width["routed"] if item.kind.value == "grouped-matmul" else 1)
        for item in layer.operators
        if item.kind in PRODUCTS
    )
    attention = 4 * one.seq_len * layer.heads * layer.head_dim
    join, head = 2 * 2 * 7168 * 7168, 2 * 7168 * 129280
    more = 3 * one.tokens * (products + attention + join + head)
    assert model_flops(one) - model_flops(none) == pytest.approx(more, rel=1e-12)
    layout = spell_out(Uniform(pp=16, dp=64, ep=64, zero_group=64), one.graph, 4096)
    with_it = estimate(replace(one, global_batch=4096), CLUSTER, layout, on=ON)
    small = replace(none, global_batch=4096)
    plain = spell_out(Uniform(pp=16, dp=64, ep=64, zero_group=64), small.graph, 4096)
    without = estimate(small, CLUSTER, plain, on=ON)
    total = sum(float(item.parameters) for item in with_it.memory)
    assert total > sum(float(item.parameters) for item in without.memory)
    assert len(layout.stages[-1].layers) < len(plain.stages[-1].layers)
